"""Everything a run is asked to do, in one frozen object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import UsageError
from precision_bisect.runfolder import default_run_folder

if TYPE_CHECKING:
    from precision_bisect.protocols import Sample

LowName: TypeAlias = Literal["fp16", "bf16"]
HighName: TypeAlias = Literal["fp32"]
BackendName: TypeAlias = Literal["auto", "emulated", "onnxruntime", "tensorrt", "tensorrt-rtx"]
Metric: TypeAlias = Literal[
    "elementwise", "max", "mean", "quantile", "l2", "cosine", "psnr", "snr"
]
LOW_NAMES: tuple[LowName, ...] = get_args(LowName)
HIGH_NAMES: tuple[HighName, ...] = get_args(HighName)
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
METRICS: tuple[Metric, ...] = get_args(Metric)

DEFAULT_TOLERANCE = 1e-2
DEFAULT_STRATEGY = "guided"

Limits: TypeAlias = "float | Mapping[str, float] | None"
"""One limit for all outputs, or one per output ("" names the default), or None if not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to search and how. Times are in seconds; None means no limit or a default.

    `tol` applies to every limit that `atol` and `rtol` do not set. `inputs` is a path (see
    `inputs.files`) or the samples themselves. Raises UsageError for values that cannot work.
    """

    model: Path
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    inputs: "Path | Sequence[Sample] | None" = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    synthetic: int = 4
    holdout: int = 0
    metric: Metric = "elementwise"
    tol: Limits = None
    atol: Limits = None
    rtol: Limits = None
    quantile: float = 0.99
    check: str | None = None
    low: LowName = "fp16"
    high: HighName = "fp32"
    backend: BackendName = "auto"
    engine: EngineSettings = field(default_factory=EngineSettings)
    strategy: str = DEFAULT_STRATEGY
    max_trials: int | None = None
    max_time_s: float | None = None
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        choices = {
            "metric": METRICS,
            "low": LOW_NAMES,
            "high": HIGH_NAMES,
            "backend": BACKENDS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"{name} cannot be {getattr(self, name)!r}", f"choose {', '.join(allowed)}"
                )
        for name, least in (
            ("max_trials", 1),
            ("synthetic", 1),
            ("holdout", 0),
            ("threads", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name.replace('_', '-')} {value} is below {least}")
        if self.max_time_s is not None and not self.max_time_s > 0:
            raise UsageError(f"--max-time {self.max_time_s} is not above zero")
        if self.check is not None and self.metric != "elementwise":
            raise UsageError("--check and --metric exclude each other", "choose one")
        if self.inputs is not None and self.input_shapes:
            raise UsageError(
                "--input-shapes is for made-up inputs, but --inputs is given", "leave one out"
            )
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other", "choose one")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or default_run_folder(self.model)
