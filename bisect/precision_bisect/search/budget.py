"""How much a run may spend: trials, seconds and disk space.

A budget is asked before a trial starts and never interrupts one: what was paid for is recorded.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from precision_bisect.machine.free_space import Space

OVERTIME, OVERTIME_S = 0.05, 2.0
"""Share of `--max-time`, and seconds beside, that a trial or what explains the answer may go on. A
bound: as much again is left for writing files, which has to be done."""
CHECK, CHECK_S = 0.08, 4.0
"""The same for the check of what was written, after which little is left but `result.json`."""


class BudgetSpent(Exception):
    """Raised when the next trial would exceed the budget; says which limit it was."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Counts trials and seconds against their limits; None is no limit.

    Forecasts, trials that explain, and those that the ledger already knows are not counted.
    `spent_s` is the time in seconds that trials of earlier sessions of the same run have taken,
    `earlier_s` that of those sessions with all else. `space` watches the disks.
    """

    max_trials: int | None = None
    max_time_s: float | None = None
    spent_s: float = 0.0
    earlier_s: float = 0.0
    space: Space | None = None
    clock: Callable[[], float] = time.monotonic
    trials: int = 0
    _started: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def elapsed_s(self) -> float:
        """Return the seconds taken so far that limits count, earlier sessions included."""
        return self.spent_s + self.clock() - self._started

    def wall_s(self) -> float:
        """Return the seconds that this and earlier sessions have taken."""
        return self.earlier_s + self.clock() - self._started

    @property
    def late(self) -> bool:
        """Whether the time is spent."""
        return self.max_time_s is not None and self.elapsed_s() >= self.max_time_s

    def overdue(self) -> bool:
        """Return whether no inference is to go on; a trial that began in time may until then."""
        return self.left_s() <= 0

    def left_s(self) -> float:
        """Return the seconds until nothing but files may be written; infinity without a limit."""
        return self._left_s(OVERTIME, OVERTIME_S)

    def closing(self) -> bool:
        """Return whether no check of files is to go on, either."""
        return self._left_s(CHECK, CHECK_S) <= 0

    def _left_s(self, share: float, more_s: float) -> float:
        if self.max_time_s is None:
            return math.inf
        return (1 + share) * self.max_time_s + more_s - self.elapsed_s()

    def admit(self, *, counted: bool) -> None:
        """Account for one more trial. Raises BudgetSpent when a limit forbids it."""
        if self.late:
            raise BudgetSpent(f"--max-time of {self.max_time_s:g} s is spent")
        # On a full disk the ledger could record nothing more; ending here leaves a run that can
        # be resumed.
        if self.space is not None and (shortage := self.space.shortage()):
            raise BudgetSpent(f"{shortage}; free some space, then go on with --resume")
        if not counted:
            return
        if self.max_trials is not None and self.trials >= self.max_trials:
            raise BudgetSpent(f"--max-trials {self.max_trials} are spent")
        self.trials += 1
