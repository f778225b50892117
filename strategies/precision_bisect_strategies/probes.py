"""What a round of the demotion tests: undecided layers in lines, groups of them, what was taken.

Layers are named by their position in the ranking, least sensitive first.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome
from precision_bisect_strategies.beliefs import Beliefs


@dataclass(frozen=True, slots=True)
class Line:
    """Undecided positions, least sensitive first.

    `bad` when they are known to hold a culprit; `error` is what they were measured to add then.
    """

    positions: list[int]
    bad: bool
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """The positions from `start` to before `end` of a line, to be demoted on trial."""

    line: Line
    start: int
    end: int

    @property
    def group(self) -> list[int]:
        """The positions."""
        return self.line.positions[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Taken:
    """A group that passed at a fair price: what it added, and the outcome without it."""

    group: list[int]
    added: float | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Passed:
    """A plan that passed, its error, and what it costs."""

    plan: Plan
    error: float | None
    cost: float


Tested: TypeAlias = tuple[Probe, Outcome]


def disjoint(beliefs: Beliefs, pool: list[int], count: int, largest: int | None) -> list[Probe]:
    """Choose at most `count` groups of the pool, smaller ones rather than fewer."""
    line = Line(pool, bad=False)
    ends = [0]
    while len(ends) <= count and ends[-1] < len(pool):
        (size,) = cuts(beliefs, Line(pool[ends[-1] :], bad=False), 1, largest)
        ends.append(ends[-1] + size)
    while len(ends) <= min(count, ends[-1]):
        size, start = max((end - start, start) for start, end in pairwise(ends))
        ends = sorted([*ends, start + size // 2])
    return [Probe(line, start, end) for start, end in pairwise(ends)]


def cuts(
    beliefs: Beliefs, line: Line, count: int, largest: int | None, guess: int | None = None
) -> list[int]:
    """Return where to cut a line: so that passing is as likely as not, or evenly spread.

    The first is at `guess`, if given; none beyond `largest`.
    """
    most = len(line.positions) - 1 if line.bad else len(line.positions)
    most = min(most, largest or most)
    if guess is not None and count == 1:
        return [max(1, min(guess, most))]
    chances = beliefs.passing(line.positions, bad=line.bad)[:most]
    found = {max(1, min(guess, most))} if guess is not None else set()
    for number in range(count - len(found)):
        aim = (number + 1) / (count - len(found) + 1)
        found.add(int(abs(chances - aim).argmin()) + 1)
    return sorted(found)
