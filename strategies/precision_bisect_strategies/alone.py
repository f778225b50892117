"""What units add when they alone run low, measured on the engine.

For builds whose noise grows with their error. On top of a plan near the limit, what one layer adds
drowns in the noise of all others; beside all-high there is none but its own. Groups are measured
first and halved where it matters, the worst first: best-first search, which ends once no group can
hold a unit as bad as the best of those that must be kept.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.units import Rated, Unit

BLOCK = 8
"""So many units are measured together at first."""
SURE = 4.0
"""What is left of a group beside its first half is believed above so many times its noise."""
FAR = 1e3
"""Errors count as at most so many times the limit, infinite ones, too."""
PROBES = 3
"""So many blocks are built twice at first."""
LESS = 0.2
"""The share of the noise below which what they differ by is less than that of larger errors."""


@dataclass(slots=True)
class _Measured:
    """Errors of single units, and of groups: (-error per cost at most, first, group, error)."""

    costs: Sequence[float]
    limit: float
    single: dict[int, float] = field(default_factory=dict)
    groups: list[tuple[float, int, range, float]] = field(default_factory=list)

    def note(self, group: range, error: float) -> None:
        """Note what a group adds."""
        if len(group) == 1:
            self.single[group.start] = error
        else:
            rate = error / min(self.costs[group.start : group.stop])
            heapq.heappush(self.groups, (-rate, group.start, group, error))

    def worst(self, count: int) -> list[tuple[range, float]]:
        """Take out at most `count` groups, the worst first, that may hold a unit to keep."""
        price = self._price()
        taken: list[tuple[range, float]] = []
        while self.groups and len(taken) < count and -self.groups[0][0] > price:
            _, _, group, error = heapq.heappop(self.groups)
            taken.append((group, error))
        return taken

    def errors(self) -> list[float]:
        """Return one error per unit; those of a group share its own."""
        errors = [0.0] * len(self.costs)
        for _, _, group, error in self.groups:
            for i in group:
                errors[i] = error / len(group)
        for i, error in self.single.items():
            errors[i] = error
        return errors

    def _price(self) -> float:
        """Return the least error per cost of the single units that must be kept."""
        total = sum(error for *_, error in self.groups) + sum(self.single.values())
        price = math.inf
        for i in sorted(self.single, key=lambda i: -self.single[i] / self.costs[i]):
            if total <= self.limit:
                return price
            total -= self.single[i]
            price = self.single[i] / self.costs[i]
        return price if total <= self.limit else 0.0


def ranked_alone(
    problem: Problem, ranked: Sequence[Rated], least: float
) -> Search[tuple[list[Rated], int] | None]:
    """Return the units in the order of what each was measured to add, and how many may go.

    `least` is the error of all-high. Returns None where the noise of little is no less than that
    of much, and where there is no tolerance above it.
    """
    if problem.tolerance is None or problem.tolerance <= least:
        return None
    beside = _Beside(problem, [each.unit for each in ranked], least, problem.tolerance - least)
    if not (yield from _shrinks(beside)):
        return None
    measured = _Measured([each.cost for each in ranked], beside.limit)
    yield from _measured(beside, measured)
    again = [
        Rated(each.unit, error / each.cost, each.cost)
        for each, error in zip(ranked, measured.errors(), strict=True)
    ]
    again.sort(key=lambda each: each.rate)
    sums = list(accumulate(each.rate * each.cost for each in again))
    return again, bisect_right(sums, beside.limit)


@dataclass(frozen=True, slots=True)
class _Beside:
    """Measures units beside all-high, whose error is `least`; `limit` is what may be added."""

    problem: Problem
    order: Sequence[Unit]
    least: float
    limit: float

    @property
    def blocks(self) -> list[range]:
        """The units in runs of `BLOCK`."""
        size = len(self.order)
        return [range(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]

    def measure(self, groups: Sequence[range], kind: Kind = Kind.JUDGE) -> Search[list[float]]:
        """Return what each group adds."""
        everything, workers = Plan.all_high(self.problem.size), self.problem.workers
        errors: list[float] = []
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

    def _added(self, outcome: Outcome) -> float:
        """Return the error added, bounded; what has no figure adds most unless it passed."""
        if outcome.error is not None and not math.isnan(outcome.error):
            return min(max(outcome.error - self.least, 0.0), FAR * self.limit)
        return 0.0 if outcome.passed else FAR * self.limit


def _shrinks(beside: _Beside) -> Search[bool]:
    """Build some blocks twice; tell whether most differ by less than errors at the limit do."""
    probes = beside.blocks[:PROBES]
    first = yield from beside.measure(probes)
    second = yield from beside.measure(probes, Kind.AGAIN)
    differ = median(abs(one - other) for one, other in zip(first, second, strict=True))
    return differ < LESS * beside.problem.noise


def _measured(beside: _Beside, measured: _Measured) -> Search[None]:
    """Measure blocks, and halves of those that matter, until no group can hold what must stay.

    The noise that the problem names is taken for that of an error at the limit, and in proportion
    below. What of a group its first half leaves is measured, too, where that drowns in it.
    """
    share = beside.problem.noise / beside.limit
    blocks = beside.blocks
    for block, error in zip(blocks, (yield from beside.measure(blocks)), strict=True):
        measured.note(block, error)
    while worst := measured.worst(beside.problem.workers):
        halves = [_halves(group) for group, _ in worst]
        firsts = yield from beside.measure([first for first, _ in halves])
        unsure = []
        for (_, whole), (first, second), error in zip(worst, halves, firsts, strict=True):
            measured.note(first, error)
            left = whole - error
            if left > SURE * share * math.hypot(whole, error):
                measured.note(second, left)
            else:
                unsure.append(second)
        seconds = yield from beside.measure(unsure)
        for second, error in zip(unsure, seconds, strict=True):
            measured.note(second, error)


def _halves(group: range) -> tuple[range, range]:
    middle = (group.start + group.stop + 1) // 2
    return range(group.start, middle), range(middle, group.stop)
