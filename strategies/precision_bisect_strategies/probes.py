"""What a round of the demotion tests: undecided layers in lines, groups of them, what was taken.

Layers are named by their position in the ranking, least sensitive first.
"""

from dataclasses import dataclass
from typing import TypeAlias

from precision_bisect.trial import Outcome


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


Tested: TypeAlias = tuple[Probe, Outcome]
