"""What units add alone, measured on the engine.

For builds whose noise grows with their error. On top of a plan near the limit, what one layer adds
drowns in the noise of all others; beside all-high there is none but its own. Groups of neighbours
in the ranking are measured, and halved where that is expected to save most: where they likely hold
a unit worse than the best of those that must be kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.rankings import Array
from precision_bisect_strategies.saving import excess
from precision_bisect_strategies.units import Rated, Unit

Both: TypeAlias = tuple[float | None, float | None]
"""What a group adds in each of two builds, None without a verdict."""

SHARES = 32
"""A group that is measured at first is expected to add so many times what a kept unit does."""
WORTH = 0.25
"""A build is worth it when it is expected to save this many layers."""
CHECKED = 8
"""A ranking is checked by so many of the units that are kept."""
TWICE = 2
"""So many of these are built twice."""
PROPORTIONAL = 3.0
"""Two builds differ by as many times the noise of their error, or by less."""
SURE = 4.0
"""What is left of a group beside its first half is believed above so many times its noise."""
FAR = 1e3
"""Errors count as at most so many times the limit, infinite ones, too."""
BLOCK = 8
"""So many units are built together to see what noise is like there."""
PROBES = 3
"""So many blocks are built twice at first."""
LESS = 0.2
"""The share of the noise below which what they differ by is less than that of larger errors."""


class _Measured:
    """What groups add, and what each of their units is believed to; shape (units,)."""

    def __init__(self, beliefs: Beliefs, costs: Sequence[float], limit: float) -> None:
        self.errors: Array = beliefs.parts(list(range(len(costs))))
        self._beliefs = beliefs
        self._costs: Array = np.asarray(costs, np.float64)
        self._limit = limit
        self._groups: list[tuple[range, float]] = []

    def note(self, group: range, error: float | None, noise: float) -> float:
        """Note what a group adds, give or take the share `noise` of it; return it.

        One without a verdict adds what is believed of it; nothing is learnt from that.
        """
        if error is None:
            error = float(self.errors[group].sum())
        else:
            error = max(error, 0.0)
            self._beliefs.learn_sum([*group], error, noise * error)
        self.errors[group] = self._beliefs.parts([*group], error)
        if len(group) > 1:
            self._groups.append((group, error))
        return error

    @property
    def order(self) -> NDArray[np.int64]:
        """The units, least error per cost first."""
        return np.argsort(self.errors / self._costs, kind="stable")

    @property
    def fitting(self) -> int:
        """How many units in this order may go."""
        sums = self.errors[self.order].cumsum()
        return int(np.searchsorted(sums, self._limit, side="right"))

    def worst(self, count: int) -> list[tuple[range, float]]:
        """Take out at most `count` groups that are worth a build, the most promising first."""
        price = self._price()
        if math.isinf(price):
            return []
        found = [(self._saves(*each, price), each) for each in self._groups]
        found.sort(key=lambda pair: (-pair[0], pair[1][0].start))
        taken = [each for saved, each in found[:count] if saved >= WORTH]
        self._groups = [each for each in self._groups if each not in taken]
        return taken

    def _saves(self, group: range, error: float, price: float) -> float:
        """Return how many usual units a build that looks for heavy ones in a group should save."""
        positions = [*group]
        saved = excess(self._beliefs, positions, error, price) / float(self._costs.mean())
        return saved / (1 + math.log2(len(group)))

    def _price(self) -> float:
        """Return the least error per cost of the units that do not fit; infinity if all do."""
        fitting = self.fitting
        if fitting == len(self.errors):
            return math.inf
        place = self.order[fitting]
        return float(self.errors[place] / self._costs[place])


def measurable(problem: Problem, ranked: Sequence[Rated], least: float) -> Search[bool]:
    """Find out whether noise is less where few units run low; builds some blocks twice.

    Most of them must differ by less than errors at the limit do. `least` is the error of all-high.
    Where units are few, or the tolerance is no higher than that, nothing is built.
    """
    few = len(ranked) <= PROBES * BLOCK
    if few or problem.tolerance is None or problem.tolerance <= least:
        return False
    beside = _Beside(problem, [each.unit for each in ranked], least, problem.tolerance - least)
    probes = [range(at, at + BLOCK) for at in range(0, PROBES * BLOCK, BLOCK)]
    twice = yield from beside.measure_twice(probes)
    differences = [abs(one - other) for one, other in _figures(twice)]
    return bool(differences) and median(differences) < LESS * problem.noise


def ranked_alone(
    problem: Problem, ranked: Sequence[Rated], beliefs: Beliefs, least: float
) -> Search[tuple[list[Rated], int]]:
    """Return the units in the order of what each was measured to add, and how many may go.

    `least` is the error of all-high, below the tolerance; `beliefs` are of this ranking.
    """
    limit = (problem.tolerance or 0.0) - least
    beside = _Beside(problem, [each.unit for each in ranked], least, limit)
    measured = _Measured(beliefs, [each.cost for each in ranked], limit)
    yield from _measured(beside, measured, beliefs)
    errors = [float(error) for error in measured.errors]
    again = [
        Rated(ranked[i].unit, errors[i] / ranked[i].cost, ranked[i].cost) for i in measured.order
    ]
    return again, measured.fitting


def checked(
    problem: Problem, ranked: Sequence[Rated], beliefs: Beliefs, least: float, kept: int
) -> Search[bool]:
    """Let beliefs learn what some of the `kept` most sensitive units add alone.

    They are single ones, evenly spread: sums of many hardly tell a poor ranking from errors that
    spread less than the emulator's. The two mildest come first, and are built twice: where these
    differ as errors at the limit do, no more is built. Returns whether anything is learnt. `least`
    is the error of all-high; where the tolerance is no higher, nothing is built.
    """
    if problem.tolerance is None or problem.tolerance <= least:
        return False
    limit, size = problem.tolerance - least, len(ranked)
    share = problem.noise / limit
    beside = _Beside(problem, [each.unit for each in ranked], least, limit)
    depths = sorted({int(kept * (place + 0.5) / CHECKED) for place in range(CHECKED)})
    singles = [range(size - 1 - depth, size - depth) for depth in reversed(depths)]
    mildest, others = singles[:TWICE], singles[TWICE:]
    twice = yield from beside.measure_twice(mildest)
    floor = _floor(_figures(twice), share)
    if floor is None or floor >= LESS * problem.noise:
        return False
    errors = [first for first, _ in twice] + (yield from beside.measure(others))
    learnt = False
    for single, error in zip(singles, errors, strict=True):
        if error is not None and error > (noise := max(share * error, floor)):
            beliefs.learn_sum([*single], error, noise)
            learnt = True
    return learnt


def _floor(twice: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return by how much two builds differ that noise in proportion to their errors explains not.

    None where there are none.
    """
    found = ((abs(one - other), PROPORTIONAL * share * max(one, other)) for one, other in twice)
    return max((0.0 if apart <= usual else apart for apart, usual in found), default=None)


def _figures(twice: Sequence[Both]) -> list[tuple[float, float]]:
    """Return what groups added that have a verdict both times."""
    return [(one, other) for one, other in twice if one is not None and other is not None]


@dataclass(frozen=True, slots=True)
class _Beside:
    """Measures units beside all-high, whose error is `least`; `limit` is what may be added."""

    problem: Problem
    order: Sequence[Unit]
    least: float
    limit: float

    def measure(
        self, groups: Sequence[range], kind: Kind = Kind.JUDGE
    ) -> Search[list[float | None]]:
        """Return what each group adds, None without a verdict; below 0 by noise."""
        everything, workers = Plan.all_high(self.problem.size), self.problem.workers
        errors: list[float | None] = []
        for start in range(0, len(groups), workers):
            outcomes = yield tuple(
                Proposal(
                    plan=everything.without(layer for i in group for layer in self.order[i]),
                    reason=f"what {len(group)} of {len(self.order)} add alone",
                    kind=kind,
                )
                for group in groups[start : start + workers]
            )
            errors += [self._added(outcome) for outcome in outcomes]
        return errors

    def measure_twice(self, groups: Sequence[range]) -> Search[list[Both]]:
        """Return what each group adds in each of two builds."""
        first = yield from self.measure(groups)
        second = yield from self.measure(groups, Kind.AGAIN)
        return list(zip(first, second, strict=True))

    def _added(self, outcome: Outcome) -> float | None:
        """Return the error added, at most FAR limits; what failed without a figure adds these."""
        if outcome.verdict is None:
            return None
        if outcome.error is not None and not math.isnan(outcome.error):
            return min(outcome.error - self.least, FAR * self.limit)
        return 0.0 if outcome.passed else FAR * self.limit


def _measured(beside: _Beside, measured: _Measured, beliefs: Beliefs) -> Search[None]:
    """Measure groups, and halves of those that matter, until no build is worth it.

    The noise that the problem names is taken for that of an error at the limit, and in proportion
    below. What of a group its first half leaves is measured, too, where that drowns in it.
    """
    share = beside.problem.noise / beside.limit
    groups = _groups(beside, beliefs)
    for group, error in zip(groups, (yield from beside.measure(groups)), strict=True):
        measured.note(group, error, share)
    while worst := measured.worst(beside.problem.workers):
        halves = [_halves(group) for group, _ in worst]
        firsts = yield from beside.measure([first for first, _ in halves])
        unsure = []
        for (_, whole), (first, second), error in zip(worst, halves, firsts, strict=True):
            error = measured.note(first, error, share)
            left, noise = whole - error, share * math.hypot(whole, error)
            if left > SURE * noise:
                measured.note(second, left, noise / left)
            else:
                unsure.append(second)
        seconds = yield from beside.measure(unsure)
        for second, error in zip(unsure, seconds, strict=True):
            measured.note(second, error, share)


def _groups(beside: _Beside, beliefs: Beliefs) -> list[range]:
    """Return all units in runs that are expected to add much the same."""
    positions = list(range(len(beside.order)))
    price = beliefs.price(beside.limit, positions, {})
    shares = beliefs.parts(positions).cumsum() / (SHARES * price * beliefs.cost(positions))
    ends = np.flatnonzero(np.diff(np.floor(shares))) + 1
    return [range(start, end) for start, end in pairwise([0, *ends.tolist(), len(positions)])]


def _halves(group: range) -> tuple[range, range]:
    middle = (group.start + group.stop + 1) // 2
    return range(group.start, middle), range(middle, group.stop)
