"""Everything a run is asked to do, in one frozen object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from precision_bisect.errors import UsageError
from precision_bisect.plan_costs import SpeedLimits
from precision_bisect.precisions import (
    HIGH_NAMES,
    LOW_NAMES,
    HighName,
    LowName,
    Pair,
    PrecisionName,
    pairs_of,
)
from precision_bisect.run_folder.runfolder import default_run_folder
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.targets import (
    DEFAULT_TARGETS,
    TARGET_CHOICES,
    TARGETS,
    TargetChoice,
    TargetName,
)

if TYPE_CHECKING:
    from precision_bisect.protocols import Sample

CalibrationName: TypeAlias = Literal["minmax", "entropy", "percentile"]
Certify: TypeAlias = Literal["none", "forecasts", "full"]
Isolate: TypeAlias = Literal["auto", "always", "never"]
Until: TypeAlias = Literal["answer", "culprits", "curve"]
ForecastOn: TypeAlias = Literal["auto", "cpu", "cuda"]
CALIBRATIONS: tuple[CalibrationName, ...] = get_args(CalibrationName)
CERTIFY: tuple[Certify, ...] = get_args(Certify)
ISOLATE: tuple[Isolate, ...] = get_args(Isolate)
UNTIL: tuple[Until, ...] = get_args(Until)
FORECAST_ON: tuple[ForecastOn, ...] = get_args(ForecastOn)

ANSWER = "answer"
MOST_THREADS = 4096
"""More than any machine has cores; ONNX Runtime would begin each of them."""
EXPORT_POINTS = (ANSWER, "culprits", "margin")
"""Points of the curve that exports can hold, beside one by its number of kept layers."""
DEFAULT_EXECUTOR = "local"
DEFAULT_TOLERANCE = 1e-2
DEFAULT_METRIC = "elementwise"
DEFAULT_STRATEGY = "guided"
DEFAULT_COPIES = 16
DISK_CAP_MIB = 10 * 1024.0
DEFAULT_LOW: LowName = "fp16"
DEFAULT_HIGH: HighName = "fp32"
DEFAULT_CALIBRATION: CalibrationName = "minmax"

Limits: TypeAlias = float | Mapping[str, float] | None
"""One limit for all outputs, or one per output ("" names the default), or None if not given."""


ENGINE_REFERENCE = Path("engine")
"""What `--reference` says for the outputs of the backend's own engine with every layer in FP32."""
_PLAIN: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("<class 'int'>", "int | None"), (int,)),
    **dict.fromkeys(("<class 'float'>", "float | None"), (int, float)),
    **dict.fromkeys(("<class 'str'>", "str | None"), (str,)),
    "<class 'bool'>": (bool,),
    str(EngineSettings): (EngineSettings,),
    **dict.fromkeys((str(Path), str(Path | None)), (Path,)),
}
"""What a value of a field may be, by the field's type as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to search and how. Times are in seconds; None means no limit or a default.

    `tol` applies to every limit that `atol` and `rtol` do not set. `inputs` is a path (see
    `inputs.input_files`) or the samples themselves; `reference` is the file of their FP32
    outputs, ENGINE_REFERENCE for those of the backend's own engine, None to have ONNX Runtime
    compute them. `ranges` has the ends between which an input may lie. With a `ladder`, lowest
    type first, `low` and `high` say nothing. An answer is judged on `copies` of the samples, of
    which `copies_failing` may fail, and widened until an estimate says that at most the share
    `risk` of unseen inputs fails. Before the search a run
    ends `until` the culprits or the curve. `export_point` is one of EXPORT_POINTS or a number of
    kept layers. `target` is what the emulator predicts, where it judges. `gpus` has one for each
    worker, as CUDA_VISIBLE_DEVICES names them; without it all share the first. The plug-in
    `executor` evaluates the trials; it is reached at `executor_address`, in its own notation.
    Raises UsageError for values that cannot work.
    """

    model: Path
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    inputs: "Path | Sequence[Sample] | None" = None
    reference: Path | None = None
    fuse_norms: bool = False
    take_branches: bool = False
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    synthetic: int = 4
    holdout: int = 0
    metric: str = DEFAULT_METRIC
    tol: Limits = None
    atol: Limits = None
    rtol: Limits = None
    quantile: float = 0.99
    check: str | None = None
    low: LowName = DEFAULT_LOW
    high: HighName = DEFAULT_HIGH
    ladder: Sequence[PrecisionName] = ()
    calibration: CalibrationName = DEFAULT_CALIBRATION
    backend: str = "auto"
    target: TargetChoice = "auto"
    engine: EngineSettings = field(default_factory=EngineSettings)
    strategy: str = DEFAULT_STRATEGY
    certify: Certify | None = None
    copies: int = DEFAULT_COPIES
    copies_failing: int = 0
    risk: float | None = None
    until: Until = "answer"
    export_point: str = ANSWER
    workers: int = 1
    gpus: Sequence[str] = ()
    mixed_gpus: bool = False
    executor: str = DEFAULT_EXECUTOR
    executor_address: str | None = None
    isolate: Isolate = "auto"
    forecast_on: ForecastOn = "auto"
    trial_timeout_s: float | None = None
    trial_memory_mib: float | None = None
    keep_engines: bool = False
    disk_cap_mib: float = DISK_CAP_MIB
    max_latency_ms: float | None = None
    min_speedup: float | None = None
    optuna_storage: str | None = None
    max_trials: int | None = None
    max_time_s: float | None = None
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        choices = {
            "low": LOW_NAMES,
            "high": HIGH_NAMES,
            "calibration": CALIBRATIONS,
            "until": UNTIL,
            "isolate": ISOLATE,
            "forecast_on": FORECAST_ON,
            "target": TARGET_CHOICES,
            **({} if self.certify is None else {"certify": CERTIFY}),
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
            ("copies", 0),
            ("copies_failing", 0),
            ("workers", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name.replace('_', '-')} {value} is below {least}")
        for name in ("threads", "workers"):
            if (value := getattr(self, name)) > MOST_THREADS:
                raise UsageError(f"--{name} {value} is above {MOST_THREADS}")
        if self.copies_failing and self.copies_failing >= self.copies:
            raise UsageError(
                f"--copies-failing {self.copies_failing} is no fewer than --copies {self.copies}",
                "allow fewer",
            )
        if self.max_time_s is not None and not self.max_time_s > 0:
            raise UsageError(f"--max-time {self.max_time_s} is not above zero")
        if not self.disk_cap_mib > 0:
            raise UsageError(f"--disk-cap {self.disk_cap_mib} is not above zero")
        for name in ("trial_timeout_s", "trial_memory_mib"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"--{_flag(name)} {value} is not above zero")
            if value is not None and self.isolate == "never":
                raise UsageError(
                    f"--{_flag(name)} needs trials in child processes", "leave out --isolate never"
                )
        if self.gpus and len(self.gpus) != self.workers:
            raise UsageError(
                f"{len(self.gpus)} GPUs for {self.workers} workers", "name one GPU for each worker"
            )
        pairs = pairs_of(self.ladder) if self.ladder else (Pair(low=self.low, high=self.high),)
        if self.calibration != DEFAULT_CALIBRATION and pairs[0].low != "int8":
            raise UsageError(
                f"--calibration {self.calibration} is for INT8, the low type is {pairs[0].low}",
                "leave it out",
            )
        if self.target not in ("auto", self.backend) and self.backend not in ("auto", "emulated"):
            raise UsageError(
                f"--target {self.target} is for the emulator, and --backend {self.backend} judges",
                "leave one out",
            )
        if self.check is not None and self.metric != DEFAULT_METRIC:
            raise UsageError("--check and --metric exclude each other", "choose one")
        if self.inputs is not None and self.input_shapes:
            raise UsageError(
                "--input-shapes is for made-up inputs, but --inputs is given", "leave one out"
            )
        if self.speed.given and self.ladder:
            raise UsageError(
                "--max-latency and --min-speedup are for one pair of types, not for a --ladder",
                "leave one out",
            )
        self._check_until()
        if self.optuna_storage is not None and self.strategy != "pareto":
            raise UsageError("--optuna-storage is for --strategy pareto", "leave one out")
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other", "choose one")

    def _check_types(self) -> None:
        """Raise UsageError for a value of another type, which only Python can give."""
        for each in fields(self):
            value, wanted = getattr(self, each.name), _PLAIN.get(str(each.type))
            if wanted is None or (value is None and "None" in str(each.type)):
                continue
            odd = isinstance(value, bool) and bool not in wanted
            if odd or not isinstance(value, wanted):
                what = wanted[-1].__name__
                raise UsageError(
                    f"{each.name} cannot be {value!r}", f"give a value of type {what}"
                )
        if not isinstance(self.inputs, Path | Sequence | Mapping | None):
            raise UsageError(
                f"inputs cannot be {self.inputs!r}", "give a path, or a list of dicts of arrays"
            )
        if not all(isinstance(each, Sequence) for each in self.input_shapes.values()):
            raise UsageError(
                f"input_shapes cannot be {self.input_shapes!r}", "give a tuple by input name"
            )
        for name in ("tol", "atol", "rtol"):
            limit = getattr(self, name)
            values = limit.values() if isinstance(limit, Mapping) else (limit,)
            if not all(value is None or isinstance(value, int | float) for value in values):
                raise UsageError(
                    f"{name} cannot be {limit!r}",
                    "give a number, or a dict of numbers by output name",
                )

    def _check_until(self) -> None:
        if self.export_point not in EXPORT_POINTS and not self.export_point.isdecimal():
            raise UsageError(
                f"--export-point {self.export_point} is no point of the curve",
                f"choose {', '.join(EXPORT_POINTS)}, or a number of kept layers",
            )
        if self.export_point != ANSWER and self.ladder:
            raise UsageError("a --ladder has no curve for --export-point", "leave one out")
        if self.risk is not None and not 0 < self.risk <= 0.5:
            raise UsageError(
                f"--risk {self.risk:g} is no share of inputs to bear", "give one as 5%, up to 50%"
            )
        if self.risk is not None and self.ladder:
            raise UsageError(
                "--risk is for one pair of types, not for a --ladder", "leave one out"
            )
        for limit, given in (
            ("--ladder", bool(self.ladder)),
            ("speed limits", self.speed.given),
            ("--risk", self.risk is not None),
        ):
            if self.until != "answer" and given:
                raise UsageError(
                    f"a run that ends with the {self.until} has no use for {limit}",
                    "leave one out",
                )

    @property
    def emulator_threads(self) -> int:
        """The threads of the emulator's session, 0 for one per core.

        With several workers each computes in its own thread, and all of them share the session's
        further ones.
        """
        if self.workers == 1 or self.threads == 0:
            return self.threads
        return max(1, self.threads - self.workers + 1)

    @property
    def targets(self) -> Sequence[TargetName]:
        """The engines that the emulator predicts or forecasts: a backend is its own."""
        if self.target == "all":
            return TARGETS
        named = self.backend if self.target == "auto" else self.target
        return [each for each in TARGETS if each == named] or DEFAULT_TARGETS

    @property
    def elsewhere(self) -> bool:
        """Whether trials may run on other machines than this one."""
        return self.executor != DEFAULT_EXECUTOR

    @property
    def speed(self) -> SpeedLimits:
        """The speed limits, none of which may be given."""
        return SpeedLimits(max_latency_ms=self.max_latency_ms, min_speedup=self.min_speedup)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or default_run_folder(self.model)


def _flag(name: str) -> str:
    """Return the flag of a field, whose name ends with its unit."""
    return name.rpartition("_")[0].replace("_", "-")
