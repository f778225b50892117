"""Simulated networks: what low layers cost, how an emulator forecasts it, and the optimum.

Errors are in units of the tolerance, which is 1. Masks are boolean arrays of shape (layers,), true
where a layer runs low. Every network passes with nothing low, fails with everything low, and its
smallest passing set of kept layers has the size `optimum` by construction.

| structure | what low layers cost |
|---|---|
| A | k layers overflow; the others add up to 0.3 |
| B | heavy-tailed errors (lognormal, sigma 2) add up |
| C | a block of 5 neighbours costs its error once any of it is low; blocks add up (sigma 2) |
| CL | C, where the emulator is off by a different amount for every layer of a block |
| D | B, where every build multiplies the error by its own noise of 10% |
| E | B, where Casts cost a little and 3% of the plans fail as if a bad tactic had been chosen |
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]

STRUCTURES = ("A", "B", "C", "CL", "D", "E")
TAIL = 2.0
BACKGROUND = 0.3
CLUSTER = 5
NOISE = 0.1
UNLUCKY = 0.03


class Network(Protocol):
    """What a plan comes to."""

    def error(self, low: Mask, draw: int = 0) -> float:
        """Return the error of one build; `draw` counts the builds of the same plan."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflowing:
    """Errors that add up, and are infinite once one of the `fatal` layers runs low."""

    errors: Floats
    fatal: Mask

    def error(self, low: Mask, draw: int = 0) -> float:
        """Return the sum, or infinity."""
        del draw
        return math.inf if (low & self.fatal).any() else float(self.errors[low].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Additive:
    """Errors that add up."""

    errors: Floats

    def error(self, low: Mask, draw: int = 0) -> float:
        """Return the sum."""
        del draw
        return float(self.errors[low].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered:
    """Clusters that add up, each with the error of its worst low member.

    `starts` are the clusters' first layers; clusters are contiguous.
    """

    errors: Floats
    starts: NDArray[np.int64]

    def error(self, low: Mask, draw: int = 0) -> float:
        """Return the sum over clusters of the largest error of a low member."""
        del draw
        return float(np.maximum.reduceat(np.where(low, self.errors, 0.0), self.starts).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy:
    """Every build multiplies the error by lognormal noise of its own; all-low is exempt."""

    network: Network
    seed: int

    def error(self, low: Mask, draw: int = 0) -> float:
        """Return the error of the build number `draw` of this plan."""
        noise = 1.0 if low.all() else math.exp(NOISE * _luck(low, self.seed, draw).gauss())
        return noise * self.network.error(low)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonMonotone:
    """A share of the plans costs up to 5 tolerances more, and every Cast at a border `border`.

    Both ends and the optimum (`spared`) are not among the unlucky, so that it stays the optimum.
    """

    network: Network
    border: float
    spared: Mask
    seed: int

    def error(self, low: Mask, draw: int = 0) -> float:
        """Return the error, the same for every build of a plan."""
        del draw
        error = self.network.error(low) + self.border * int((low[1:] != low[:-1]).sum())
        luck = _luck(low, self.seed, 0)
        if luck.random() >= UNLUCKY or low.all() or not low.any() or (low == self.spared).all():
            return error
        return error + luck.uniform(1.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A simulated network and its emulator.

    `truth` judges plans, `exact` is the same without noise between builds, `emulator` answers
    forecasts. `noise` is what two builds of a plan differ by at the tolerance.
    """

    truth: Network
    exact: Network
    emulator: Network
    size: int
    optimum: int
    noise: float = 0.0


def instance(structure: str, size: int, kept: int, rho: float, seed: int) -> Instance:
    """Build a network of `size` layers whose optimum keeps `kept`, and an emulator of it.

    `rho` is the Spearman correlation of the emulator's errors of single layers with the true ones:
    a Gaussian copula. The emulator's values are further off by a scale (lognormal, 0.7) and by an
    exponent (lognormal, 0.15) that changes their spread, not their sum. The network depends on
    `seed`, not on `rho`. Raises ValueError for clusters that do not divide the sizes.
    """
    rng = np.random.default_rng([STRUCTURES.index(structure), size, kept, seed])
    if structure == "A":
        return _overflowing(rng, size, kept, rho)
    if structure in ("C", "CL"):
        return _clustered(rng, (size, kept), rho, apart=structure == "CL")
    return _additive(rng, size, kept, rho, structure)


def _overflowing(rng: np.random.Generator, size: int, kept: int, rho: float) -> Instance:
    latent = rng.standard_normal(size)
    fatal = _largest(latent, kept)
    errors = np.where(fatal, 0.0, np.exp(latent))
    errors *= BACKGROUND / errors.sum()
    seen = _copula(rng, latent, rho)
    believed = int(np.clip(round(kept * rng.lognormal(0.0, 0.5)), 1, size // 2))
    overflow = _largest(seen, believed)
    forecast = _distorted(rng, np.where(overflow, 0.0, np.exp(seen)), np.sum, BACKGROUND)
    truth = Overflowing(errors=errors, fatal=fatal)
    emulator = Overflowing(errors=forecast, fatal=overflow)
    return Instance(truth=truth, exact=truth, emulator=emulator, size=size, optimum=kept)


def _additive(
    rng: np.random.Generator, size: int, kept: int, rho: float, structure: str
) -> Instance:
    latent = rng.standard_normal(size)
    worst = _largest(latent, kept)
    errors = np.exp(TAIL * latent)
    errors /= _between(errors, worst)
    seen = np.exp(TAIL * _copula(rng, latent, rho))
    emulator = Additive(errors=_distorted(rng, seen, np.sum, errors.sum()))
    exact: Network = Additive(errors=errors)
    seed = int(rng.integers(2**62))
    if structure == "E":
        # A Cast rounds as much as a usual layer; all that the optimum needs still leave it within.
        slack = 1.0 - float(errors[~worst].sum())
        border = min(float(np.median(errors)), slack / (4 * kept))
        exact = NonMonotone(network=exact, border=border, spared=~worst, seed=seed)
    noisy = structure == "D"
    return Instance(
        truth=Noisy(network=exact, seed=seed) if noisy else exact,
        exact=exact,
        emulator=emulator,
        size=size,
        optimum=kept,
        noise=NOISE if noisy else 0.0,
    )


def _clustered(
    rng: np.random.Generator, sizes: tuple[int, int], rho: float, *, apart: bool
) -> Instance:
    size, kept = sizes
    if size % CLUSTER or (kept % CLUSTER and kept != 1):
        raise ValueError(f"clusters of {CLUSTER} cannot make up {kept} of {size} layers")
    starts = np.arange(0, size, CLUSTER)
    if kept == 1:  # the optimum is then one layer apart from its block, the worst of all
        starts = np.sort(np.append(starts, rng.choice(starts) + 1))
    members = np.diff(np.append(starts, size))
    latent = rng.standard_normal(len(starts))
    if kept == 1:
        alone, highest = int(np.argmin(members)), int(np.argmax(latent))
        latent[alone], latent[highest] = latent[highest], latent[alone]
    errors = np.exp(TAIL * latent)
    errors /= _between(errors, _largest(latent, -(-kept // CLUSTER)))

    def whole(values: Floats) -> float:
        return Clustered(errors=values, starts=starts).error(np.ones(size, dtype=bool))

    each = np.repeat(latent, members)
    seen = _copula(rng, each if apart else latent, rho)
    seen = seen if apart else np.repeat(seen, members)
    forecast = _distorted(rng, np.exp(TAIL * seen), whole, errors.sum())
    truth = Clustered(errors=np.repeat(errors, members), starts=starts)
    emulator = Clustered(errors=forecast, starts=starts)
    return Instance(truth=truth, exact=truth, emulator=emulator, size=size, optimum=kept)


def _copula(rng: np.random.Generator, latent: Floats, rho: float) -> Floats:
    """Return normal values of Spearman correlation `rho` with `latent`."""
    pearson = 2.0 * math.sin(math.pi * rho / 6.0)
    return pearson * latent + math.sqrt(1.0 - pearson**2) * rng.standard_normal(len(latent))


def _distorted(
    rng: np.random.Generator, values: Floats, whole: Callable[[Floats], float], total: float
) -> Floats:
    """Bend values by a random exponent, and scale them to a sum that is randomly off `total`."""
    bent = values ** rng.lognormal(0.0, 0.15)
    return np.asarray(bent * (rng.lognormal(0.0, 0.7) * total / whole(bent)))


def _largest(values: Floats, count: int) -> Mask:
    chosen = np.zeros(len(values), dtype=bool)
    chosen[np.argsort(values)[len(values) - count :]] = True
    return chosen


def _between(errors: Floats, worst: Mask) -> float:
    """Return the tolerance half way between the sum without the worst, and with the mildest."""
    return float(errors[~worst].sum() + errors[worst].min() / 2.0)


def _luck(low: Mask, seed: int, draw: int) -> random.Random:
    return random.Random(seed.to_bytes(8) + draw.to_bytes(4) + np.packbits(low).tobytes())
