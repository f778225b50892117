"""The rankings that a search reckons with: how far the layers' true order follows each.

A *culprit* is a layer that must be kept. Under a ranking of rank correlation rho (a Gaussian
copula) and with K culprits of n, the layer at normal score z is one with probability
Phi((rho z - t) / sqrt(1 - rho^2)), where t cuts off K of n. A ranking may also have *missed* a
share of the layers altogether, as where no sample made them overflow: these stand anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SPREAD = 0.6
"""Standard deviation of ln K around the number of culprits that the ranking suggests."""
SURPRISE = 0.2
"""The chance that the ranking says nothing of K."""
BENDS = np.array([0.8, 0.9, 1.0, 1.11, 1.25])
"""Exponents on the ranking's errors: the engine's may spread more, or less, than these do."""
BENT = 0.15
"""Standard deviation of ln of that exponent."""
DRAWS = 48
"""So many true orders are drawn for each ranking: what one layer adds is looked for in those that
add up to what was measured, and of 12 these were too few under a poor ranking."""
TIED = 1.0
"""Standard deviation of ln of the errors of layers that the ranking says the same of."""
TINY = 1e-12
_NORMAL = NormalDist()

Array: TypeAlias = NDArray[np.float64]
Ranks: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A rank correlation, the share of layers that it does not hold for, and its weight at first.

    `trust` is relative to that of the others, `blind` the same where outcomes alone, without
    figures, show how good it is.
    """

    rho: float
    missed: float = 0.0
    trust: float
    blind: float


RANKINGS = (
    Ranking(rho=0.0, trust=3.0, blind=6.0),
    Ranking(rho=0.3, trust=1.0, blind=1.5),
    Ranking(rho=0.5, trust=1.0, blind=2.0),
    Ranking(rho=0.7, trust=1.0, blind=3.0),
    Ranking(rho=0.8, trust=1.0, blind=3.0),
    Ranking(rho=0.9, trust=2.0, blind=3.0),
    Ranking(rho=0.95, trust=4.0, blind=3.0),
    Ranking(rho=0.98, trust=10.0, blind=4.0),
    Ranking(rho=0.995, trust=10.0, blind=4.0),
    Ranking(rho=0.98, missed=0.2, trust=4.0, blind=4.0),
    Ranking(rho=0.98, missed=0.5, trust=4.0, blind=4.0),
)
"""On engines and with all inputs 0.98 to 0.99 were measured, and none missed. Where outcomes alone
count, each build tells at most a bit: more evenly spread ones are told apart in fewer."""
RHOS: Array = np.array([each.rho for each in RANKINGS])
MISSED: Array = np.array([each.missed for each in RANKINGS])
FAR_OFF = RHOS <= 0.8
"""The rankings whose order is far from the true one; one that missed some layers is not."""


def trust(figures: bool) -> Array:
    """Return the weight of each ranking at first."""
    return np.array([each.trust if figures else each.blind for each in RANKINGS])


def numbers(size: int) -> Array:
    """Return numbers of culprits to consider: 1 to size - 1, in steps of a factor of 1.4."""
    counts: list[int] = []
    count = 1.0
    while count < size:
        if not counts or round(count) > counts[-1]:
            counts.append(round(count))
        count = max(count * 1.4, count + 1)
    return np.array(counts or [1], np.float64).clip(0.5, size - 0.5)


def likely(counts: Array, expected: float) -> Array:
    """Return how likely each K is: about what is expected, or else any."""
    near = np.exp(-((np.log(counts / expected) / SPREAD) ** 2) / 2)
    prior: Array = (1 - SURPRISE) * near / near.sum() + SURPRISE / len(counts)
    return prior


def bends() -> Array:
    """Return how likely each exponent is."""
    prior: Array = np.exp(-((np.log(BENDS) / BENT) ** 2) / 2)
    return prior


def culprits(size: int, counts: Array) -> Array:
    """Return each layer's probability to be a culprit, shape (rankings, counts, layers)."""
    cuts = np.array([_NORMAL.inv_cdf(1 - count / size) for count in counts])
    rhos = RHOS[:, None, None]
    scaled = (rhos * _scores(size) - cuts[None, :, None]) / np.sqrt(1 - rhos**2)
    # One at a time: with thousands of layers the steps in between take ten times as much.
    seen = np.stack([phi(each) for each in scaled])
    seen += MISSED[:, None, None] * (counts[None, :, None] / size - seen)
    return np.clip(seen, TINY, 1 - TINY)


def even(chances: Array, scores: Sequence[float]) -> Array:
    """Return chances of shape (..., layers), the same for all layers of infinite scores.

    Which of those stands first says nothing. Of others that are equal it may: they can be of two
    kinds, those that the emulator chooses to keep, and the rest.
    """
    endless = np.isinf(scores)
    if not endless.any():
        return chances
    return np.where(endless, chances[..., endless].mean(axis=-1, keepdims=True), chances)


def tied(values: Array) -> Array | None:
    """Return 1 for each of the sorted values that is there more than once, else 0; None if none.

    Shape (layers,).
    """
    same = values[1:] == values[:-1]
    if not same.any():
        return None
    return np.asarray(np.append(same, False) | np.append(False, same), np.float64)


def orders(size: int, seed: int) -> Ranks:
    """Return true orders that are drawn for each: ranks, shape (rankings, draws, layers)."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((DRAWS, size))
    chances = rng.random((DRAWS, size))
    ranks = np.empty((len(RHOS), DRAWS, size), np.min_scalar_type(size))
    # One at a time: with thousands of layers the steps in between take a lot of memory.
    for ranking, (rho, missed) in enumerate(zip(RHOS, MISSED, strict=True)):
        rhos = np.where(chances < missed, 0.0, rho)
        latent = rhos * _scores(size) + np.sqrt(1 - rhos**2) * noise
        ranks[ranking] = latent.argsort(axis=1).argsort(axis=1)
    return ranks


def sums_over(values: Array, ranks: Ranks, group: list[int], costs: Array) -> Array:
    """Return what a group adds in each order, shape (rankings, draws).

    `values` are errors per unit of cost by rank, `ranks` as of `orders`, `costs` of all layers.
    One ranking at a time: of thousands of layers all errors at once would take a lot of memory.
    """
    each = [(values[of_one[:, group]] * costs[group]).sum(axis=1) for of_one in ranks]
    return np.array(each)


def log_not(log_probability: Array) -> Array:
    """Return ln(1 - p), given ln p."""
    result: Array = np.log(np.maximum(-np.expm1(log_probability), TINY))
    return result


def phi(x: Array) -> Array:
    """Return the normal distribution function, by Abramowitz and Stegun 7.1.26 (error 1e-7)."""
    t = 1 / (1 + 0.3275911 * np.abs(x) / np.sqrt(2))
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    upper = series * np.exp(-(x**2) / 2) / 2
    distribution: Array = np.where(x < 0, upper, 1 - upper)
    return distribution


def _scores(size: int) -> Array:
    """Return the normal score of each place, shape (layers,)."""
    return np.array([_NORMAL.inv_cdf((place + 0.5) / size) for place in range(size)])
