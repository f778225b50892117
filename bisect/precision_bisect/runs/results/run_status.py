"""`status.json`, version 1: what a run tells of itself while it goes on, and how it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from precision_bisect.runs.monitoring.events import RunStarted
from precision_bisect.runs.results.curve_of_result import KeptError
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.runfolder import STATUS
from precision_bisect.runs.typed_json import Count, read_or_none
from precision_bisect.trial import Figure, Kind, Outcome, Phase, Proposal, TrialStatus, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTrial:
    """What a trial evaluates: `kept` is the number of layers, `plan` the plan's key."""

    kept: Count
    plan: str
    phase: Phase
    samples: str
    kind: Kind
    draw: Count
    case: str = ""
    timed: bool
    reason: str
    narrowed_to: int | None
    about_left: int | None

    @classmethod
    def of(cls, proposal: Proposal, **more: Any) -> Self:
        """Return what is asked, with the further fields of a subclass."""
        names = (entry.name for entry in fields(proposal) if entry.name != "plan")
        asked = {name: getattr(proposal, name) for name in names}
        return cls(kept=len(proposal.plan), plan=proposal.plan.key, **asked, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial(StartedTrial):
    """A trial that goes on, with its seconds so far."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTrial(StartedTrial):
    """A trial that has ended; what the build showed of each layer is in the ledger only."""

    status: TrialStatus
    verdict: Verdict | None
    error: Figure | None
    message: str
    wall_s: float
    latency_ms: Figure | None
    speedup: Figure | None

    @classmethod
    def by(cls, proposal: Proposal, outcome: Outcome) -> Self:
        """Return what a trial showed."""
        latency = outcome.evidence.latency
        names = ("status", "verdict", "error", "message", "wall_s")
        return cls.of(
            proposal,
            latency_ms=latency.median_ms if latency else None,
            speedup=latency.speedup if latency else None,
            **{name: getattr(outcome, name) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that searches; `command` is None where the run was begun from Python."""

    pid: int
    host: str
    version: str
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus(Process):
    """The contents of the file.

    Times are UTC, ISO 8601: `started` that of the process, `taken` when it took the folder,
    `updated` when the file was written. `seconds` are those since the start. `done` is the share
    of the run that is over, `last` are the last trials. `wall_s` is that of the result.
    """

    schema: Literal[1] = 1
    started: str
    taken: str | None
    updated: str
    seconds: float
    state: Literal["searching", "finished", "failed"] = "searching"
    status: Status | None = None
    message: str = ""
    run: RunStarted
    phase: Phase | None = None
    trials: Count = 0
    builds: Count = 0
    evaluations: Count = 0
    done: float = 0.0
    unresolved: Mapping[str, Count] = field(default_factory=dict)
    best: KeptError | None = None
    narrowed_to: int | None = None
    about_left: int | None = None
    seconds_left: float | None = None
    in_flight: Sequence[RunningTrial] = ()
    last: Sequence[EndedTrial] = ()
    wall_s: Figure | None = None


def told_of(folder: Path) -> RunStatus | None:
    """Return what a run folder tells, None where that is nothing."""
    return read_or_none(RunStatus, folder / STATUS)
