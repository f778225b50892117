"""Trials: what a strategy proposes, and what comes back."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from precision_bisect.evidence import Evidence
from precision_bisect.plan import Plan

Identity: TypeAlias = tuple[str, str, str, int]
"""What tells trials apart: the plan's key, the samples, the kind, the draw of copies."""


class TrialStatus(StrEnum):
    """How far an evaluation got. Only a finished one has a verdict.

    CRASHED: a signal or an unexpected end of its process. OUT_OF_MEMORY: main memory, not the
    GPU's. RAISED: an exception that no backend should raise. CORRUPTED: its process gave an answer
    that cannot be read.
    """

    FINISHED = "finished"
    BUILD_FAILED = "build_failed"
    RUN_FAILED = "run_failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    RAISED = "raised"
    CORRUPTED = "corrupted"
    NOT_HONOURED = "not_honoured"

    @property
    def fatal(self) -> bool:
        """Whether the process of the evaluation was lost, or is not to be trusted any more."""
        return self in _FATAL


_FATAL = frozenset(
    (
        TrialStatus.TIMED_OUT,
        TrialStatus.CRASHED,
        TrialStatus.OUT_OF_MEMORY,
        TrialStatus.RAISED,
        TrialStatus.CORRUPTED,
    )
)


CUDA_FAILED = "CUDA failed: "
"""How the message of a failed build begins whose process may have no CUDA context any more."""


class Verdict(StrEnum):
    """Whether the outputs were within the tolerance."""

    PASS = "pass"
    FAIL = "fail"


class Phase(StrEnum):
    """What a trial is for."""

    PREFLIGHT = "preflight"
    RANKING = "ranking"
    CURVE = "curve"
    PREDICTION = "prediction"
    SEARCH = "search"
    CERTIFICATE = "certificate"
    SPEED = "speed"
    RECHECK = "recheck"


class SampleSet(StrEnum):
    """Which inputs a trial runs: those that judge, a few for ranking, those held out, or all."""

    JUDGED = "judged"
    RANKING = "ranking"
    HELD_OUT = "held_out"
    ALL = "all"


class Kind(StrEnum):
    """What evaluates a trial, and against what.

    JUDGE builds the plan and judges it against the reference. REPEAT builds it again and judges
    it against the first run: its error is the noise floor. AGAIN builds it once more for a second
    verdict or a latency; REBUILD builds an answer afresh for the re-check. Both are judged against
    the reference. PREDICT asks the emulator, whatever the run's backend is.
    """

    JUDGE = "judge"
    REPEAT = "repeat"
    AGAIN = "again"
    REBUILD = "rebuild"
    PREDICT = "predict"


JUDGED_KINDS = (Kind.JUDGE, Kind.AGAIN, Kind.REBUILD)
"""The kinds that build a plan and judge it against the reference, the freshest last."""


BELIEVED = "; "
"""Parts what is tried from what is believed in a reason: lines that have no room end here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan to evaluate, and why.

    With a `draw` above 0 the plan is judged on that draw of copies of the samples, too (see
    `inputs.copies`); no two draws have a copy in common. `timed` asks for the latency, too.
    `narrowed_to` is the size of the smallest set known to pass, `about_left` the proposer's guess
    of the trials still to come; both are for people to read and change nothing.
    """

    plan: Plan
    phase: Phase = Phase.SEARCH
    samples: SampleSet = SampleSet.JUDGED
    kind: Kind = Kind.JUDGE
    draw: int = 0
    timed: bool = False
    reason: str = ""
    narrowed_to: int | None = None
    about_left: int | None = None

    @property
    def identity(self) -> Identity:
        """What makes two proposals the same trial."""
        return (self.plan.key, self.samples.value, self.kind.value, self.draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one trial showed.

    `error` is on the tolerance's own scale (smaller is better, infinity for NaN or Inf outputs);
    None where there is no figure: an unfinished trial, or a pass/fail check.
    `message` is one line for people; `evidence` what the build showed beside the outputs.
    """

    status: TrialStatus
    verdict: Verdict | None = None
    error: float | None = None
    message: str = ""
    wall_s: float = 0.0
    evidence: Evidence = field(default_factory=Evidence)

    def __post_init__(self) -> None:
        if (self.verdict is not None) != (self.status is TrialStatus.FINISHED):
            raise ValueError(f"a {self.status} trial cannot have the verdict {self.verdict}")

    @property
    def passed(self) -> bool:
        """True for a pass; False for a failure and for an unresolved trial."""
        return self.verdict is Verdict.PASS

    @property
    def failed(self) -> bool:
        """True for a judged failure; False for a pass and for an unresolved trial."""
        return self.verdict is Verdict.FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A finished trial as the ledger holds it."""

    proposal: Proposal
    outcome: Outcome
