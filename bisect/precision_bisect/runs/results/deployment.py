"""How an answer is deployed: what opens the exported model, and what the last check made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias

from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure

TrtexecMode: TypeAlias = Literal["strong10", "strong11", "rtx", "weak"]
Doing: TypeAlias = Literal["reads", "checks", "opens", "runs", "judges"]
OutcomeName: TypeAlias = Literal["pass", "fail", "not_judged", "broken", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How ONNX Runtime on CUDA opens a model, as far as results depend on it.

    `provider_options` are those of the CUDA provider, `session_config` further entries.
    """

    provider_options: Mapping[str, str]
    session_config: Mapping[str, str]
    graph_optimization_level: str = "ORT_ENABLE_ALL"
    disabled_optimizers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDefaults:
    """What the exported model comes to with ONNX Runtime's own options.

    `options` are those of ours that cure it where it fails, as KEY=VALUE.
    """

    outcome: OutcomeName
    error: Figure | None = None
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How a fresh process `ended` without an answer, and what a library did with the file then.

    `library` tells its version, too. It was a `fault` unless something else may have ended it, at
    a `level` of optimisation. At `cure`, a lower one, the model runs; the worst output's `error`
    is of that. Levels are values of `graph_optimization_level`, "" where there is none.
    """

    library: str
    doing: Doing
    level: str = ""
    ended: str = ""
    fault: bool = False
    cure: str = ""
    error: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """What a fresh process made of the exported files.

    `pass` and `fail` are verdicts by ONNX Runtime on CUDA; `not_judged`: the files fit together,
    and nothing contradicts them; `broken`: they do not, or do not open; `differs`: the model gives
    something else than what was judged. `message` is a sentence, `error` the worst output's.
    With a `crash` a process has ended without an answer.
    """

    outcome: OutcomeName
    message: str
    error: Figure | None = None
    library_defaults: ByDefaults | None = None
    crash: Crash | None = None

    @property
    def refutes(self) -> bool:
        """Whether the exported model must not be deployed."""
        return self.outcome in ("fail", "broken", "differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(SessionOptions):
    """How the answer is opened, and judged, where it is deployed.

    The options judged the answer where ONNX Runtime did; else they are what this package would
    judge with. `samples` of all `samples_total` are stored; none where nothing judges on a target.
    `polygraphy` judges with TensorRT, in the run folder; None where Polygraphy cannot. `recheck`
    is None where nothing was checked.
    """

    samples: Count = 0
    samples_total: Count = 0
    polygraphy: str | None = None
    recheck: Recheck | None = None

    @classmethod
    def by(cls, options: SessionOptions, **judged: Any) -> Self:
        """Return how an answer is deployed that is opened with these options, and `judged` so."""
        opening = {option.name: getattr(options, option.name) for option in fields(SessionOptions)}
        return cls(**opening, **judged)

    @property
    def left_out(self) -> str:
        """What of the samples is not stored, in one sentence; "" where all are."""
        if self.samples == self.samples_total:
            return ""
        return (
            f"the first {self.samples} of {self.samples_total} samples are stored for the target"
        )


@dataclass(frozen=True, kw_only=True)
class FilesSection:
    """What became of the files for deployment.

    `export_point` is the point of the curve that they hold, None if none was written.
    `layer_precisions` is trtexec's string, else its reason says why there is none, as `no_command`
    does for each way of trtexec.sh that has no command. `tf32_on` tells whether what stays FP32
    has TF32 in them.
    """

    export_point: str | None = None
    layer_precisions: str | None = None
    layer_precisions_reason: str | None
    no_command: Mapping[TrtexecMode, str] = field(default_factory=dict)
    deployment: Deployment | None = None
    tf32_on: bool = False
