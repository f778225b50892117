"""What a round of the demotion tests: undecided layers in lines, groups of them, what was taken.

Layers are named by their position in the ranking, least sensitive first.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.rankings import Array


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


def disjoint(
    beliefs: Beliefs, pool: list[int], count: int, largest: int | None, room: float
) -> list[Probe]:
    """Choose at most `count` groups of the pool, smaller ones rather than fewer."""
    line = Line(pool, bad=False)
    ends = [0]
    while len(ends) <= count and ends[-1] < len(pool):
        (size,) = cuts(beliefs, Line(pool[ends[-1] :], bad=False), 1, largest, room)
        ends.append(ends[-1] + size)
    while len(ends) <= min(count, ends[-1]):
        size, start = max((end - start, start) for start, end in pairwise(ends))
        ends = sorted([*ends, start + size // 2])
    return [Probe(line, start, end) for start, end in pairwise(ends)]


def cuts(
    beliefs: Beliefs,
    line: Line,
    count: int,
    largest: int | None,
    room: float,
    guess: int | None = None,
) -> list[int]:
    """Return where to cut a line: so that passing is as likely as not, or evenly spread.

    The first is at `guess`, if given; none beyond `largest`. `room` is what may be added.
    """
    most = len(line.positions) - 1 if line.bad else len(line.positions)
    most = min(most, largest or most)
    if guess is not None and count == 1:
        return [max(1, min(guess, most))]
    passing = chances(beliefs, line, room)[:most]
    found = {max(1, min(guess, most))} if guess is not None else set()
    for number in range(count - len(found)):
        aim = (number + 1) / (count - len(found) + 1)
        found.add(int(abs(passing - aim).argmin()) + 1)
    return sorted(found)


def chances(beliefs: Beliefs, line: Line, room: float) -> Array:
    """Return the chance that the first m of a line can be demoted, for m >= 1.

    They hold no culprit and add at most `room`; shape (len(line.positions),).
    """
    passing = beliefs.passing(line.positions, bad=line.bad)
    return np.asarray(np.minimum(passing, beliefs.fitting(line.positions, room)))
