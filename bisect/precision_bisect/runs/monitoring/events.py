"""What a run tells its watchers. The core emits these; only reports render them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from precision_bisect.settings.sample_options import ImageOptions
from precision_bisect.settings.targets import TargetChoice
from precision_bisect.trial import Figure, Outcome, Phase, Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run begins or goes on: what is searched and how. `why` is the reason for this backend;
    `target` is what the emulator predicts where it judges.

    `limits` are those that errors are multiples of, where there are several, so that the tolerance
    is 1. `speed` names the speed limits, if any. A run over a ladder of types has one such event
    for each search; `rung` names its two types.
    """

    model: str
    backend: str
    why: str
    strategy: str
    assumption: str
    candidates: int
    layers_total: int
    samples: int
    held_out: int
    tolerance: Figure | None
    resumed_trials: int
    limits: str = ""
    speed: str = ""
    workers: int = 1
    rung: str = ""
    target: TargetChoice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something the user should know, in one sentence."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRead:
    """What samples hold for one input: each shape that occurs, and figures, None of no numbers."""

    name: str
    dtype: str
    shapes: Sequence[tuple[int, ...]]
    lowest: float | None
    highest: float | None
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesRead:
    """So many samples lie at `path`; `inputs` are of the first `looked_at` of them.

    Of images, it has their size, layout and order of channels, and how pixels were scaled.
    """

    path: str
    samples: int
    looked_at: int
    inputs: Sequence[InputRead]
    images: ImageOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """The first trial of a phase is about to be proposed."""

    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial is about to be evaluated."""

    proposal: Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial has ended; `recalled` when its outcome came from the ledger."""

    proposal: Proposal
    outcome: Outcome
    recalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsEnded:
    """No trial follows: the answer is explained, advice is tried, and the files are written."""


Event: TypeAlias = (
    RunStarted | Warned | SamplesRead | PhaseStarted | TrialStarted | TrialFinished | TrialsEnded
)


class Observer(Protocol):
    """Receives every event, in order, in the driver's thread."""

    def __call__(self, event: Event, /) -> None: ...


def ignore(event: Event, /) -> None:
    """Observe nothing."""
    del event


def tell_all(*observers: Observer) -> Observer:
    """Return an observer that hands every event to each of these, in this order."""

    def tell(event: Event, /) -> None:
        for observer in observers:
            observer(event)

    return tell
