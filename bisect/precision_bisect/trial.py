"""Trials: what a strategy proposes, and what comes back."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import ClassVar, Literal, TypeAlias

from precision_bisect.plan import Plan

LatencyMethod: TypeAlias = Literal["host_clock", "cuda_events", "cuda_graph"]


class NotFinite(float, Enum):
    """The floats that JSON has no numbers for, by the texts that files have in their place."""

    INFINITY = "inf"
    MINUS_INFINITY = "-inf"
    NAN = "nan"

    def __new__(cls, text: str) -> "NotFinite":
        """Return the float that the text spells; the text stays its value."""
        number = float.__new__(cls, text)
        number._value_ = text
        return number

    __repr__ = __str__ = float.__repr__

    def __format__(self, form: str) -> str:
        return float.__format__(self, form)


Figure: TypeAlias = float | NotFinite
"""A float of a file that may be infinite; it is a float in every respect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long one inference takes on the engine, in milliseconds.

    `median_ms` over `runs` timed runs, inputs on the device; `spread_ms` is the interquartile
    range. `method` is the host's clock round a launch, or a CUDA graph's replay, and the wait for
    its end, or CUDA events. In turns with every layer high, whose median is `baseline_ms`, it was
    `speedup` times as fast, with that spread. `batch` is None for the samples' own.
    """

    median_ms: float
    spread_ms: float
    runs: int
    method: LatencyMethod = "host_clock"
    baseline_ms: float | None = None
    speedup: float | None = None
    speedup_spread: float | None = None
    batch: int | None = None


class Honour(StrEnum):
    """Whether a built engine computes a kept layer at the precision that was asked for."""

    HONOURED = "honoured"
    DEMOTED = "demoted"
    NOT_OBSERVABLE = "not_observable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHonour:
    """What the engine did with one kept layer, and what shows it, in one sentence.

    `found` tells whether something in the engine was seen that may compute the layer.
    """

    layer: str
    honoured: Honour
    evidence: str
    found: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What the builder listed with one of its remarks: its layers, or weights, by their names."""

    note: str
    names: Sequence[str]


class Verdict(StrEnum):
    """Whether the outputs were within the tolerance."""

    PASS = "pass"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """How a plan did on copies of the samples that differ by one part in 100,000.

    Of `copies` that ran before the verdict was clear `failed` exceeded the tolerance. `samples` is
    the verdict on the samples as given, None in ledgers of versions that did not tell it.
    `error_median` and `error_max` are over these copies, on the tolerance's scale; `jitter` is the
    standard deviation of the error's natural logarithm. Each is None where there are no figures.
    """

    copies: int
    failed: int
    error_median: Figure | None = None
    error_max: Figure | None = None
    jitter: Figure | None = None
    samples: Verdict | None = None

    @classmethod
    def of(
        cls, failed: int, errors: Sequence[float | None], samples: Verdict | None = None
    ) -> "Stability":
        """Return that of copies with these errors, of which so many failed."""
        figures = [error for error in errors if error is not None]
        logs = [math.log(error) for error in figures if 0 < error < math.inf]
        return cls(
            copies=len(errors),
            failed=failed,
            error_median=statistics.median(figures) if figures else None,
            error_max=max(figures, default=None),
            jitter=statistics.stdev(logs) if len(logs) > 1 else None,
            samples=samples,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """How far one output is from the reference, in its own units.

    `max` and `mean` are absolute errors over all samples, `p99` is the largest of the samples'
    99th percentiles. Of `elements` so many are `differing`. The largest error is that of `index`
    in `sample`, where `expected` became `got`.
    """

    output: str
    max: Figure
    mean: Figure
    p99: Figure
    elements: int
    differing: int
    sample: int
    index: Sequence[int]
    expected: Figure
    got: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne:
    """How a plan did on each of `numbers`; those `unjudged` have no finite FP32 outputs."""

    numbers: Sequence[int]
    errors: Sequence[Figure | None]
    copies: Sequence[Sequence[Figure | None]] = ()
    failed: Sequence[int] = ()
    unjudged: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How ONNX Runtime opened a graph: GraphOptimizationLevel, optimizers left out, provider."""

    level: str
    disabled: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one build showed beside the outputs.

    `honours` has one entry per kept layer where the backend looks into its engine. `notes` are
    remarks worth a line in the report: the builder's warnings, fusions switched off; `listed` says
    which layers or weights some mean. `stability` is of copies of the samples, `output_errors` of
    a pass, `one_by_one` where each was judged by itself. `by_classes` tells of a failure that only
    outputs judged as classes have a part in, `dropped_nan` names the layers that drop a NaN which
    FP32 has not: it fails by that alone. `by_step` are the errors of a loop's steps.
    """

    latency: Latency | None = None
    stability: Stability | None = None
    honours: Sequence[LayerHonour] = ()
    notes: Sequence[str] = ()
    listed: Sequence[Listed] = ()
    opening: Opening | None = None
    output_errors: Sequence[OutputError] = ()
    one_by_one: OneByOne | None = None
    by_classes: bool = False
    dropped_nan: Sequence[str] = ()
    by_step: Sequence[Figure] = ()

    @property
    def demoted(self) -> Sequence[LayerHonour]:
        """The kept layers that the engine computes low all the same."""
        return [entry for entry in self.honours if entry.honoured is Honour.DEMOTED]

    @property
    def honoured(self) -> bool | None:
        """False when a kept layer was demoted, True when all were seen honoured, else None."""
        if self.demoted:
            return False
        verdicts = [entry.honoured is Honour.HONOURED for entry in self.honours]
        return True if verdicts and all(verdicts) else None


CaseName: TypeAlias = str
"""What a plan is judged as: "" for the model, types, samples, judge and target of the run itself,
else the name of a case with one of these changed. Names may hold text of models."""
Identity: TypeAlias = tuple[str, str, str, int, CaseName]
"""What tells trials apart: the plan's key, the samples, the kind, the draw of copies, the case."""


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
        return self.name in ("TIMED_OUT", "CRASHED", "OUT_OF_MEMORY", "RAISED", "CORRUPTED")


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
    EXPLANATION = "explanation"


class SampleSet(str):
    """Which samples a trial runs: a set by its name, or samples by their numbers.

    JUDGED are those that judge, RANKING a few of them. Of many samples some are `chosen`. The
    others are judged one by one (`singly`): the POOL that was chosen from, all `others` than the
    chosen ones, and those HELD_OUT, which are neither. Former versions had trials of all.
    """

    __slots__ = ()
    JUDGED: "ClassVar[SampleSet]"
    RANKING: "ClassVar[SampleSet]"
    POOL: "ClassVar[SampleSet]"
    HELD_OUT: "ClassVar[SampleSet]"

    @classmethod
    def chosen(cls, numbers: Iterable[int]) -> "SampleSet":
        """Return the set of these samples, the hardest first."""
        return cls(",".join(map(str, numbers)))

    @classmethod
    def read(cls, text: str) -> "SampleSet":
        """Return the set that a text names. Raises ValueError for a text that names none."""
        if text not in _NAMED and cls(text).numbers is None:
            raise ValueError(f"{text!r} is no set of samples")
        return cls(text)

    @property
    def others(self) -> "SampleSet":
        """The set of all samples but those chosen and held out."""
        return SampleSet(f"{_OTHERS}{self}")

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The numbers of the samples that were chosen, None for a set with a name."""
        listed = self.removeprefix(_OTHERS)
        return tuple(map(int, listed.split(","))) if _LISTED.fullmatch(listed) else None

    @property
    def singly(self) -> bool:
        """Whether each sample is judged by itself, and has a figure of its own."""
        return self in ("pool", "held_out") or self.startswith(_OTHERS)

    @property
    def judges(self) -> bool:
        """Whether plans are searched by it."""
        return self in ("judged", "all") or (not self.singly and self.numbers is not None)


_OTHERS, _LISTED = "not ", re.compile(r"\d+(,\d+)*")
_NAMED = ("judged", "ranking", "pool", "held_out", "all")
for _name in _NAMED:
    setattr(SampleSet, _name.upper(), SampleSet(_name))


class Kind(StrEnum):
    """What evaluates a trial, and against what.

    JUDGE builds the plan and judges it against the reference. REPEAT builds it again, as it is
    deployed, and judges it against the first run: its error is the noise floor, with what other
    options change. AGAIN builds it once more for a second verdict or a latency; REBUILD builds an
    answer afresh for the re-check. Both are judged against the reference. PREDICT asks the
    emulator, whatever the run's backend is.
    """

    JUDGE = "judge"
    REPEAT = "repeat"
    AGAIN = "again"
    REBUILD = "rebuild"
    PREDICT = "predict"


JUDGED_KINDS = (Kind.JUDGE, Kind.AGAIN, Kind.REBUILD)
"""The kinds that build a plan and judge it against the reference, the freshest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan to evaluate, and why.

    With a `draw` above 0 the plan is judged on that draw of copies of the samples, too (see
    `inputs.copies`); no two draws have a copy in common. `timed` asks for the latency, too. In
    another `case` than the run's own it is evaluated by what `search.other_cases` has for that.
    `narrowed_to` is the size of the smallest set known to pass, `about_left` the guess of trials
    still to come; both change nothing.
    """

    plan: Plan
    phase: Phase = Phase.SEARCH
    samples: SampleSet = SampleSet.JUDGED
    kind: Kind = Kind.JUDGE
    draw: int = 0
    case: CaseName = ""
    timed: bool = False
    reason: str = ""
    narrowed_to: int | None = None
    about_left: int | None = None

    @property
    def identity(self) -> Identity:
        """What makes two proposals the same trial."""
        return (self.plan.key, str(self.samples), self.kind.value, self.draw, self.case)

    @property
    def forecast(self) -> bool:
        """Whether the emulator evaluates it in every run, so that no limit of trials counts it."""
        return self.kind is Kind.PREDICT or self.phase is Phase.EXPLANATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one trial showed.

    `error` is on the tolerance's own scale (smaller is better, infinity for NaN or Inf outputs);
    None where there is no figure: an unfinished trial, or a pass/fail check.
    `message` is one line for people; `evidence` what the build showed beside the outputs. `retry`
    tells of a failure that the process may be to blame for, not the plan: CUDA failed in it, or
    the GPU's memory was full. Ledgers do not keep it.
    """

    status: TrialStatus
    verdict: Verdict | None = None
    error: float | None = None
    message: str = ""
    wall_s: float = 0.0
    evidence: Evidence = field(default_factory=Evidence)
    retry: bool = False

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
