"""A search with faults in its trials, and what they have cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from faults import subject
from patience import LIMIT_S, late_by
from precision_bisect.runs.monitoring.events import (
    Event,
    Observer,
    TrialFinished,
    ignore,
    tell_all,
)
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result

Record: TypeAlias = Callable[[str, object], None]

LIMITS = {"trial_timeout_s": LIMIT_S, "trial_memory_mib": 600}


@dataclass(slots=True)
class Run:
    """A search with faults; what was evaluated after its verdict had come is repeated."""

    folder: Path
    repeated: int = 0
    _done: dict[str, int] = field(default_factory=dict)

    def search(self, observer: Observer = ignore, **options: Any) -> Result:
        """Search, with limits on each trial, and count."""
        observer = tell_all(self.observe, observer)
        try:
            with late_by(lambda: subject.hanging(self.folder)):
                return subject.search(self.folder, observer, **{**LIMITS, **options})
        finally:
            for place, (what, trial, _) in enumerate(subject.noted(self.folder)):
                known = self._done.get(trial, place)
                self.repeated += what == "begun" and known < place

    def observe(self, event: Event) -> None:
        """Take down how far the script's log is when the verdict of a trial has come."""
        if isinstance(event, TrialFinished) and event.outcome.verdict and not event.recalled:
            place = len(subject.noted(self.folder))
            self._done.setdefault("/".join(map(str, event.proposal.identity)), place - 1)

    def lost(self) -> int:
        """Return how many trials the ledger knows nothing of, though their verdict had come."""
        return len(self._done.keys() - subject.rows(self.folder).keys())

    def settle(self, result: Result, faults: int, record: Record, kept: Sequence[str]) -> None:
        """Record the figures, and check that nothing was lost, repeated, wrong or left over."""
        wrong = int((Status.FOUND, kept) != (result.status, result.kept))
        record("faults", ("workers", faults, self.lost(), self.repeated, wrong))
        assert (0, 0, 0) == (self.lost(), self.repeated, wrong), result.message
        assert [] == subject.left_over(self.folder)
