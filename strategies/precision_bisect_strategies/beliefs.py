"""What is believed of the layers: a ranking of unknown worth, and the outcomes so far.

Layers are named by their *position* in the ranking, least sensitive first. Which of the possible
`rankings` this is, and how many culprits K there are, is unknown: every pair of a grid has a
weight (Bayes), and the outcomes say which it is. A good one lets the search test large groups, a
useless one is found out after a few failures.

Given both, layers are culprits independently of each other. A group passes when it has none: the
probabilities of adaptive group testing with a prior (Dorfman 1943; Hwang, JASA 1972; nested
testing with unequal probabilities: Kealy, Johnson, Piechocki 2014).
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TypeAlias

import numpy as np

from precision_bisect_strategies.fitting import Fitted
from precision_bisect_strategies.rankings import (
    BENDS,
    DRAWS,
    FAR_OFF,
    MISSED,
    RHOS,
    TIED,
    TINY,
    Array,
    Ranks,
    bends,
    culprits,
    even,
    likely,
    log_not,
    numbers,
    orders,
    phi,
    sums_over,
    tied,
    trust,
)

FIGURE_SPREAD = 0.35
"""Standard deviation of ln of a measured error around what a right model says."""
SURE = 0.9
"""From this expected correlation on what single layers were measured to add speaks for others."""
DOUBTED = 4.0
"""So many measured ones speak half as loudly as they would if there were many."""
FARTHEST = 1.0
"""Nor do they change ln of what is believed of others by more than this."""
NEAREST = 64
"""Whether so many layers fit is looked into."""
DOUBTFUL = 0.5
"""A ranking counts as poor from this chance on."""
CERTAIN = 0.95
"""Above this expected correlation the next layer in line is the next to demote."""
NEARLY = 0.98
"""From this correlation on a ranking's order is right but for layers that differ little."""
MISFIT = 0.1
"""A group adds up to so much more (ln) than is believed, though it holds no heavy layer."""

Positions: TypeAlias = list[int]


class Beliefs:
    """Weights over (rho, K, exponent), and what follows for groups of consecutive positions.

    `scores`, shape (layers,), are the errors that the ranking gives each layer alone per unit of
    its cost, infinity for one that overflows; `costs`, shape (layers,), are what keeping each
    costs. `room` is the error that all layers that run low may add up
    to, None where there are no figures. `expected` is how many culprits the ranking suggests.
    `exact` tells that builds of a plan agree and layers cost alike, so that the next layer in line
    is the next to demote if the ranking is right.
    """

    def __init__(
        self,
        scores: Sequence[float],
        costs: Sequence[float],
        *,
        room: float | None,
        expected: int,
        seed: int = 0,
        exact: bool = True,
    ) -> None:
        self._size = len(scores)
        self._costs: Array = np.asarray(costs, np.float64)
        self._values: Array = np.sort(np.asarray(scores, np.float64))
        self._room = room
        self.counts = numbers(self._size)
        self._figures = room is not None and bool(np.isfinite(self._values).all())
        self._log_clean = np.log1p(-even(culprits(self._size, self.counts), scores))
        self._log_weights = np.zeros((len(RHOS), len(self.counts), len(BENDS)))
        self._log_weights += np.log(trust(self._figures))[:, None, None]
        self._log_weights += np.log(likely(self.counts, max(expected, 0.5)))[:, None]
        self._log_weights += np.log(bends())
        self._weights: Array | None = None
        self._ranks = orders(self._size, seed)
        self._bent: Array = np.maximum(self._values, 0.0) ** BENDS[:, None]
        self._scales = self._log_scales()
        self._log_clean_at_most: Array = np.zeros(self._size)
        self._tied = tied(self._values)
        self._jitter = np.random.default_rng(seed).standard_normal((DRAWS, self._size))
        self._exact = exact
        finite = np.where(np.isfinite(self._values), self._values, 0.0)
        self._fitted = Fitted(finite, self._costs)

    def _log_scales(self) -> Array:
        """Return for each K and exponent the factor (ln) on errors at which just K do not fit."""
        if not self._figures or self._room is None:
            return np.zeros((len(self.counts), len(BENDS)))
        sums = np.cumsum(self._bent * self._costs.mean(), axis=1)
        fitting = sums[:, np.clip(self._size - self.counts - 1, 0, None).astype(int)].T
        scales: Array = np.log(max(self._room, TINY) / np.maximum(fitting, TINY))
        return scales

    @property
    def figures(self) -> bool:
        """Whether errors are believed to add up; else outcomes alone count."""
        return self._figures

    @property
    def finite(self) -> bool:
        """Whether all scores are: infinite ones tell nothing of what a layer adds."""
        return bool(np.isfinite(self._values).all())

    def copy(self) -> "Beliefs":
        """Return beliefs that learn on their own from here."""
        other = copy(self)
        other._log_weights = self._log_weights.copy()
        other._fitted = self._fitted.copy()
        return other

    @property
    def weights(self) -> Array:
        """The weights over (rho, K), shape (rhos, counts); they sum to one."""
        weights: Array = self._all_weights().sum(axis=2)
        return weights

    def _all_weights(self) -> Array:
        """Return the weights over (rho, K, exponent)."""
        if self._weights is None:
            self._weights = np.exp(self._log_weights - self._log_weights.max())
            self._weights /= self._weights.sum()
        return self._weights

    @property
    def rho(self) -> float:
        """The expected rank correlation between the ranking and the truth."""
        return float(self.weights.sum(axis=1) @ (RHOS * (1 - MISSED)))

    @property
    def poor(self) -> bool:
        """Whether the ranking's order is more likely than not far from the true one."""
        return float(self.weights.sum(axis=1)[FAR_OFF].sum()) > DOUBTFUL

    @property
    def certain(self) -> bool:
        """Whether the ranking is right as far as can be told, and errors tell single layers."""
        return self._figures and self._exact and self.rho > CERTAIN

    @property
    def nearly_right(self) -> bool:
        """Whether the likeliest ranking's order is right, but for layers that differ little.

        Groups that add a little more than believed then count as holding no heavy layer. A ranking
        that has yet to prove right is given that credit.
        """
        likeliest = self._likeliest
        right = RHOS[likeliest] >= NEARLY and MISSED[likeliest] == 0
        return self._figures and self._exact and bool(right)

    @property
    def _likeliest(self) -> int:
        """The ranking that is believed most."""
        return int(self.weights.sum(axis=1).argmax())

    def passing(self, group: Positions, *, bad: bool) -> Array:
        """Return the probability that the first m of `group` hold no culprit, for m >= 1.

        Shape (len(group),); `bad` says that the whole group is known to hold one.
        """
        clean = np.exp(np.cumsum(self._log_clean_of(group), axis=2))
        if bad:
            whole = clean[:, :, -1:]
            clean = (clean - whole) / np.maximum(1 - whole, TINY)
        chances: Array = np.einsum("rk,rkm->m", self.weights, clean)
        return chances

    def expect(self, chances: Mapping[int, float]) -> None:
        """Believe that these positions, and no others, are culprits with at least these chances.

        Whatever the ranking says of them; chances are below one.
        """
        self._log_clean_at_most = np.zeros(self._size)
        for position, chance in chances.items():
            self._log_clean_at_most[position] = np.log1p(-chance)

    def _log_clean_of(self, group: Positions) -> Array:
        """Return ln of the chance to be no culprit, shape (rankings, counts, len(group))."""
        clean: Array = np.minimum(self._log_clean[:, :, group], self._log_clean_at_most[group])
        return clean

    def learn(self, part: Positions, rest: Positions, *, clean: bool, bad: bool) -> None:
        """Learn whether `part` holds no culprit; `bad` if `part` and `rest` were suspect."""
        of_part = self._log_clean_of(part).sum(axis=2)
        of_rest = self._log_clean_of(rest).sum(axis=2)
        told = of_part if clean else log_not(of_part)
        if bad:
            told = told - log_not(of_part + of_rest)
            if clean:
                told += log_not(of_rest)
        self._log_weights += told[:, :, None]
        self._weights = None

    def learn_sum(self, group: Positions, error: float, noise: float = 0.0) -> None:
        """Learn that these positions add `error`, give or take `noise`, when they run low."""
        if not self._figures or not max(noise, 0.0) < error < np.inf:
            return
        self._fitted.learn(group, self._ranks, error, noise)
        measured = np.hypot(FIGURE_SPREAD, noise / error)
        for bend, values in enumerate(self._bent):
            sums = np.log(np.maximum(sums_over(values, self._ranks, group, self._costs), TINY))
            means = sums.mean(axis=1)[:, None] + self._scales[:, bend]
            spreads = np.hypot(sums.std(axis=1), measured)[:, None]
            distances = (np.log(error) - means) / spreads
            self._log_weights[:, :, bend] -= np.log1p(distances**2 / 3) * 2 + np.log(spreads)
        self._weights = None

    def tells_all(self, error: float | None, noise: float) -> bool:
        """Whether what a single layer adds says all that its failing could tell.

        That it does not fit, or is no fair price, also depends on what is left. Its error does
        not, unless it may be noise.
        """
        return self._figures and error is not None and 0.0 < error < np.inf and not noise

    def price(self, room: float, undecided: Positions, kept: Mapping[int, float]) -> float:
        """Return the error per cost at which keeping a layer begins to pay; infinity if all fit.

        `room` is what is left, `undecided` positions, `kept` the measured errors of single layers
        that are kept so far and could run low instead.
        """
        if not self._figures:
            return np.inf
        levels = []
        for errors, costs in self.cheapest_first(undecided, kept):
            fits = int(np.searchsorted(np.cumsum(errors), room, side="right"))
            levels.append(errors[fits] / costs[fits] if fits < len(errors) else np.inf)
        return float(np.median(levels))

    def cheapest_first(
        self, undecided: Positions, kept: Mapping[int, float]
    ) -> Iterator[tuple[Array, Array]]:
        """Yield errors and costs in the order in which to demote, for each likely true order."""
        some = list(kept)
        costs = self._costs[undecided + some]
        measured = np.array([kept[i] for i in some])
        for ranks in self._likely_ranks():
            factor = self._measured_over(self._errors(ranks, some), measured)
            errors = np.append(factor * self._errors(ranks, undecided), measured)
            order = np.argsort(errors / costs)
            yield errors[order], costs[order]

    def _measured_over(self, believed: Array, measured: Array) -> float:
        """Return by how much single layers were measured above what is believed of them."""
        if not len(measured) or self.rho <= SURE:
            return 1.0
        ratio = float(np.median(np.log(np.maximum(measured, TINY) / np.maximum(believed, TINY))))
        ratio *= len(measured) / (len(measured) + DOUBTED)
        return float(np.exp(np.clip(ratio, -FARTHEST, FARTHEST)))

    def fair_sum(self, group: Positions, price: float, added: float) -> float:
        """Return what a group that `added` so much should add: no layer above `price` per cost.

        Where the ranking is nearly right, its scale may be off by as much as the group
        adds too much, up to `MISFIT`, and layers above the price count up to it.
        """
        most = price * self._costs[group]
        sums = []
        for ranks in self._likely_ranks():
            errors = self._errors(ranks, group)
            if self.nearly_right:
                scale = np.clip(added / max(errors.sum(), TINY), 1.0, np.exp(MISFIT))
                sums.append(float(np.minimum(scale * errors, most).sum()))
            else:
                sums.append(float(errors[errors <= most].sum()))
        return sum(sums) / len(sums)

    def parts(self, group: Positions, total: float | None = None) -> Array:
        """Return the expected error of each position, given that together they add `total`."""
        errors, likely, _ = self.weighed(group, total)
        parts: Array = np.einsum("rd,rdm->m", likely, errors)
        return parts

    def weighed(
        self, group: Positions, total: float | None, blind: float = 0.0
    ) -> tuple[Array, Array, float]:
        """Return errors in all orders, shape (rankings, draws, group), and how likely each is.

        They are scaled to add `total`, and are the likelier the less that changes them. The third
        is how likely such a total is by all orders, over the likeliest one. `blind` is the least
        chance, before that, that the ranking says nothing.
        """
        errors = self._errors(self._ranks, group)
        likely = np.repeat(self.doubting(blind)[:, None] / DRAWS, DRAWS, axis=1)
        if total is None:
            return errors, likely, 1.0
        if self._tied is not None:
            spread = np.exp(TIED * self._tied[self._ranks[:, :, group]] * self._jitter[:, group])
            errors = np.maximum(errors, TINY * self._costs[group]) * spread
        sums = np.maximum(errors.sum(axis=2), TINY)
        distances = np.log(sums / max(total, TINY))
        likely *= np.exp(-((distances / FIGURE_SPREAD) ** 2) / 2)
        right = float(likely.sum())
        likely = (likely + TINY) / (likely + TINY).sum()
        errors *= (total / sums)[:, :, None]
        return errors, likely, right

    def doubting(self, blind: float) -> Array:
        """Return the rankings' weights, the useless one's at least `blind`; shape (rankings,)."""
        weights: Array = (1 - blind) * self.weights.sum(axis=1)
        weights[RHOS == 0.0] += blind
        return weights

    def by_ranking(self, group: Positions) -> Iterator[Array]:
        """Yield the errors in all orders of one ranking, shape (draws, group), then the next."""
        return (self._errors(ranks, group) for ranks in self._ranks)

    def fitting(self, group: Positions, room: float) -> Array:
        """Return the chance that the first m of `group` add at most `room`, for m >= 1.

        Shape (len(group),). That of the first `NEAREST` counts for longer groups, too.
        """
        if not (self._figures and group and np.isfinite(room)):
            return np.ones(len(group))
        totals = np.cumsum(self._errors(self._ranks, group[:NEAREST]), axis=2)
        sums = np.log(np.maximum(totals, TINY))
        spreads = np.hypot(sums.std(axis=1), FIGURE_SPREAD)
        within = phi((np.log(max(room, TINY)) - sums.mean(axis=1)) / spreads)
        chances = np.minimum.accumulate(self.weights.sum(axis=1) @ within)
        return np.append(chances, np.full(len(group) - len(chances), chances[-1]))

    def expected(self, group: Positions) -> list[float]:
        """Return the median error of each position, by the likeliest orders."""
        errors: Array = np.median(self._errors(self._likely_ranks(), group), axis=0)
        return [float(error) for error in errors]

    def costs(self, group: Positions) -> Array:
        """Return what keeping each of these positions costs."""
        return self._costs[group]

    def cost(self, group: Positions) -> float:
        """Return what keeping these positions costs on average."""
        return float(self._costs[group].mean())

    def _likely_ranks(self) -> Ranks:
        """Return the orders that were drawn for the likeliest rho, shape (draws, layers)."""
        likely: Ranks = self._ranks[self._likeliest]
        return likely

    def _errors(self, ranks: Ranks, group: Positions) -> Array:
        """Return a group's errors in these true orders, by the likeliest exponent."""
        fitted = self._fitted.values(self._likeliest) if self.nearly_right else None
        if fitted is not None:
            return np.asarray(fitted[ranks[..., group]] * self._costs[group])
        weights = self._all_weights().sum(axis=0)
        bend = int(weights.sum(axis=0).argmax())
        scale = float(weights[:, bend] @ self._scales[:, bend] / weights[:, bend].sum())
        errors: Array = self._bent[bend][ranks[..., group]] * (self._costs[group] * np.exp(scale))
        return errors
