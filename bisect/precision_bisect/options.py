"""Everything a run is asked to do, in one frozen object."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from precision_bisect.errors import UsageError, counted
from precision_bisect.plan_costs import SpeedLimits
from precision_bisect.plugins import BACKENDS, STRATEGIES, installed, name_of
from precision_bisect.precisions import (
    HighName,
    LowName,
    Pair,
    PrecisionName,
    pairs_of,
    parse_ladder,
    type_name,
)
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.export_points import DEPLOY, EXPORT_POINTS, FEWEST, export_point
from precision_bisect.settings.flags import check, flag, flag_name, objects
from precision_bisect.settings.loop_options import check_loop, loop_of_check
from precision_bisect.settings.reading import duration, patterns, share
from precision_bisect.settings.sample_options import DEFAULT_METRIC, SampleOptions, check_images
from precision_bisect.settings.targets import DEFAULT_TARGETS, TARGETS, TargetChoice, TargetName
from precision_bisect.settings.worker_options import DEFAULT_EXECUTOR, WorkerOptions

CalibrationName: TypeAlias = Literal["minmax", "entropy", "percentile"]
Certify: TypeAlias = Literal["none", "forecasts", "full"]
Until: TypeAlias = Literal["answer", "culprits", "curve"]
Objective: TypeAlias = Literal["fastest", "smallest", "fewest"]
Unit: TypeAlias = Literal["layer", "module"]

_search = partial(flag, "search")
_speed = partial(flag, "speed")
_output = partial(flag, "output")
DEFAULT_STRATEGY = "guided"
DEFAULT_COPIES, MOST_COPIES = 16, 10_000
DEFAULT_LOW: LowName = "fp16"
DEFAULT_HIGH: HighName = "fp32"
DEFAULT_CALIBRATION: CalibrationName = "minmax"


def default_run_folder(model: Path) -> Path:
    """Return where a run of this model goes unless it is told otherwise."""
    return Path(f"{model.name}.precision-bisect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(WorkerOptions, SampleOptions):
    """What to search and how. Times are in seconds; None means no limit or a default.

    With a `ladder`, lowest type first, `low` and `high` say nothing. Before the search a run ends
    `until` the culprits or the curve. `export_point` is of EXPORT_POINTS or a number of layers.
    Raises UsageError for values that cannot work.
    """

    model: Path
    engine: EngineSettings = field(default_factory=EngineSettings)
    until: Until = _search(
        "answer",
        "end with the culprits, which hurt alone as much as all less sensitive layers "
        "together, and export that plan, passing or not",
        name="--culprits-only",
        const="culprits",
    )
    fuse_norms: bool | None = _search(
        None,
        "search the fused form, each LayerNorm, RMSNorm, GroupNorm, Softmax and Gelu as one "
        "operator; left out, both are tried, and the better is deployed",
    )
    take_branches: bool = _search(
        False,
        "search with the branches that every sample takes in place of their Ifs; done by "
        "itself where no layer is outside",
    )
    low: LowName = _search(
        DEFAULT_LOW, "the low type ({})", read=type_name, brief="fp16, bf16, int8 or fp8 (fp16)"
    )
    high: HighName = _search(
        DEFAULT_HIGH,
        "the type of kept layers ({})",
        read=type_name,
        brief="the type of kept layers (fp32)",
    )
    ladder: Sequence[PrecisionName] = _search(
        (),
        "instead of a pair, as int8,fp16,fp32: how low each layer can go",
        metavar="LOWEST,...,HIGHEST",
        read=parse_ladder,
    )
    keep: Sequence[str] = _search(
        (),
        "layers that stay high in every plan: a name, an operator type, a module, or a "
        "regular expression, of names at their start, of types as a whole; repeatable",
        metavar="PATTERN",
        gather=patterns,
        brief="layers that stay high in every plan",
    )
    low_only: Sequence[str] = _search(
        (), "layers that run low in every plan, as --keep", metavar="PATTERN", gather=patterns
    )
    start: str | Path | None = _search(
        None,
        "try this plan first and refine it: of a run folder, a mixed .onnx, an AutoCast "
        "exclude list, or trtexec's layerPrecisions",
        metavar="FROM",
    )
    calibration: CalibrationName = _search(DEFAULT_CALIBRATION, "how INT8 scales are found ({})")
    backend: str = _search(
        "auto",
        "what judges plans; auto: the first that can run of TensorRT, ONNX Runtime on CUDA and "
        "the emulator ({})",
        choices=lambda: ("auto", *installed(BACKENDS)),
        brief="what judges: emulated, onnxruntime, tensorrt, …",
    )
    target: TargetChoice = _search(
        "auto",
        "the engine that the emulator predicts; all: a plan must pass on each; auto: what is "
        "installed, else tensorrt (auto)",
        brief="the engine that the emulator predicts",
    )
    strategy: str | Callable[..., Any] = _search(
        DEFAULT_STRATEGY,
        lambda: f"how to search: {', '.join(installed(STRATEGIES))} ({{}})",
        metavar="NAME",
    )
    objective: Objective = _search(
        "fastest",
        "what to deploy, with room below the limit: the fastest plan, that of fewest bytes of"
        " weights, or the fewest layers, as with another --strategy, --by module, --risk or"
        " speed limits ({})",
        brief="to deploy: fastest, smallest, fewest (fastest)",
    )
    by: Unit = _search("layer", "single layers, or whole modules of the model's source ({})")
    certify: Certify | None = _search(
        None,
        "what shows that each kept layer is needed. full: a failing trial without it; "
        "forecasts: or a forecast of one, if a random sample of those is built and fails "
        "(full where the emulator judges, else forecasts)",
    )
    copies: int = _search(
        DEFAULT_COPIES,
        "judge an answer, and what proves it, on N slightly changed copies of the samples ({})",
        metavar="N",
        least=0,
        most=MOST_COPIES,
    )
    copies_failing: int = _search(0, "so many of them may fail ({})", metavar="N", least=0)
    risk: float | None = _search(
        None,
        "keep more layers until, by estimate, at most this share of unseen inputs is over the"
        " limit",
        metavar="SHARE",
        read=share,
    )
    max_trials: int | None = _search(
        None, "stop after N trials, ranking not counted", metavar="N", least=1
    )
    max_time_s: float | None = _search(
        None,
        "stop after this long: 90s, 15m, 8h",
        metavar="TIME",
        read=duration,
        positive=True,
        brief="stop after this long: 90s, 15m, 8h",
    )
    seed: int = _search(0, "of all chance ({})", metavar="N", least=0)
    max_latency_ms: float | None = _speed(
        None, "milliseconds that the answer may take, on an engine", metavar="MS"
    )
    min_speedup: float | None = _speed(
        None,
        "how many times as fast as every layer high the answer must be, on an engine",
        metavar="X",
        brief="the answer must be so many times as fast",
    )
    optuna_storage: str | None = _speed(
        None, "with --strategy pareto: copy the study there, as sqlite:///pareto.db", metavar="URL"
    )
    out: Path | None = _output(
        None,
        "the run folder (MODEL.precision-bisect)",
        metavar="DIR",
        brief="the run folder (MODEL.precision-bisect)",
    )
    resume: bool = _output(
        False,
        "go on with the run in the folder, or begin it",
        brief="go on with the run in the folder",
    )
    overwrite: bool = _output(
        False, "replace the run that the folder holds", brief="replace the run in the folder"
    )
    export_point: str = _output(
        DEPLOY,
        "which plan the files hold: the one to deploy (else the fewest layers), the fewest, "
        "the culprits, a few more that bring the error far down, or K layers ({})",
        metavar=f"{'|'.join(EXPORT_POINTS)}|K",
        read=export_point,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.loop is None and (loop := loop_of_check(self.check)) is not None:
            object.__setattr__(self, "loop", loop)
            object.__setattr__(self, "check", None)
        self.check_samples()
        self._check_patterns()
        beyond = chain(self._beyond_a_pair(), self._beyond_the_emulator())
        refusals = chain(check_images(self), check_loop(self), self._clashes(), beyond)
        for refused, message, hint in refusals:
            if refused:
                raise UsageError(message, hint)

    def _clashes(self) -> Iterator[tuple[bool, str, str]]:
        """Yield whether flags exclude each other, how it is said, and what to do."""
        out = "leave one out"
        failing, copies = self.copies_failing, self.copies
        less = f"--copies-failing {failing} is no fewer than --copies {copies}"
        yield bool(failing) and failing >= copies, less, "allow fewer"
        for name in ("trial_timeout_s", "trial_memory_mib"):
            limited = getattr(self, name) is not None and self.isolate == "never"
            needs = f"{flag_name(name)} needs trials in child processes"
            yield limited, needs, "leave out --isolate never"
        unlike = bool(self.gpus) and len(self.gpus) != self.workers
        yield (
            unlike,
            f"{counted(len(self.gpus), 'GPU')} for {counted(self.workers, 'worker')}",
            "name one for each",
        )
        emulated = self.target in ("auto", self.backend) or self.backend in ("auto", "emulated")
        judges = f"--target {self.target} is for the emulator, and --backend {self.backend} judges"
        yield not emulated, judges, out
        checked = self.check is not None and self.metric != DEFAULT_METRIC
        yield checked, "--check and --metric exclude each other", "choose one"
        made_up = isinstance(self.inputs, Path | None) or not self.input_shapes
        yield not made_up, "--input-shapes is for made-up inputs, but --inputs is given", out
        stored = self.optuna_storage is not None and self.strategy != "pareto"
        pareto = "leave it out, or give --strategy pareto"
        yield stored, "--optuna-storage is for --strategy pareto", pareto
        layers = self.by == "module" and (self.speed.given or self.risk is not None)
        yield layers, "--max-latency, --min-speedup and --risk are for a search by layers", out
        both = self.resume and self.overwrite
        yield both, "--resume and --overwrite exclude each other", "choose one"
        for name in objects(self):
            unknown = f"--resume cannot tell whether the object in --{name} is the same again"
            yield self.resume, unknown, "give it by name, or replace the run with --overwrite"

    def _beyond_the_emulator(self) -> Iterator[tuple[bool, str, str]]:
        """Yield the same of what the emulator has not; `auto` may turn out to be it."""
        emulated = self.backend == "emulated"
        yield (
            emulated and self.speed.given,
            "--max-latency and --min-speedup need a backend that measures latency, and the "
            "emulator has none",
            "choose --backend onnxruntime (on CUDA), tensorrt or tensorrt-rtx; "
            "`precision-bisect doctor` says which work here",
        )
        yield (
            emulated and bool(self.gpus),
            "--workers gpu:… is for backends that use a GPU, and the emulator uses none",
            f"write --workers {self.workers}",
        )
        yield (
            emulated and self.keep_engines,
            "--keep-engines needs a backend that builds engines, and the emulator builds none",
            "leave it out, or choose --backend tensorrt or tensorrt-rtx",
        )

    def _beyond_a_pair(self) -> Iterator[tuple[bool, str, str]]:
        """Yield the same of a ladder, of a part of a run, and of points of the curve."""
        out = "leave one out"
        first = self.pairs[0].low
        scales = self.calibration != DEFAULT_CALIBRATION and first != "int8"
        no_scales = f"--calibration {self.calibration} is for INT8, the low type is {first}"
        yield scales, no_scales, "leave it out"
        is_point = self.export_point in EXPORT_POINTS or self.export_point.isdecimal()
        no_point = f"--export-point {self.export_point} is no point of the curve"
        points = f"choose {', '.join(EXPORT_POINTS)}, or a number of kept layers"
        yield not is_point, no_point, points
        shared = self.risk is None or 0 < self.risk <= 0.5
        no_share = f"--risk {self.risk} is no share of inputs to bear"
        yield not shared, no_share, "give one as 5%, up to 50%"
        for what, is_set in (
            ("--max-latency and --min-speedup are", self.speed.given),
            ("--risk is", self.risk is not None),
            ("--by module is", self.by == "module"),
        ):
            lone = f"{what} for one pair of types, not for a --ladder"
            yield bool(self.ladder) and is_set, lone, out
            useless = (
                f"a run that ends with the {self.until} has no use for {what.rsplit(' ', 1)[0]}"
            )
            yield self.until != "answer" and is_set, useless, out
        begun = "--start is for one pair of types, not for a --ladder"
        yield bool(self.ladder) and self.start is not None, begun, out
        curveless = bool(self.ladder) and self.export_point not in (DEPLOY, FEWEST)
        yield curveless, "a --ladder has no curve for --export-point", out
        ended = self.until != "answer" and bool(self.ladder)
        yield ended, f"a run that ends with the {self.until} has no use for --ladder", out

    def _check_patterns(self) -> None:
        """Raise UsageError for patterns of a type that only Python can give."""
        for name in ("keep", "low_only"):
            value = getattr(self, name)
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            if not (listed and all(isinstance(pattern, str) and pattern for pattern in value)):
                raise UsageError(f"{name} cannot be {value!r}", "give a list of patterns")

    @property
    def pair(self) -> Pair:
        """The types of a search without a ladder."""
        return Pair(low=self.low, high=self.high)

    @property
    def pairs(self) -> Sequence[Pair]:
        """The pairs of types that are searched, lowest first: those of the ladder, or the one."""
        return pairs_of(self.ladder) if self.ladder else (self.pair,)

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
        return [target for target in TARGETS if target == named] or DEFAULT_TARGETS

    @property
    def elsewhere(self) -> bool:
        """Whether trials may run on other machines than this one."""
        return self.executor != DEFAULT_EXECUTOR

    @property
    def speed(self) -> SpeedLimits:
        """The speed limits, none of which may be given."""
        return SpeedLimits(max_latency_ms=self.max_latency_ms, min_speedup=self.min_speedup)

    @property
    def sent(self) -> "Options":
        """The options for other processes: samples go by themselves, objects stay here."""
        named: dict[str, Any] = {name: name_of(value) for name, value in objects(self).items()}
        return replace(self, inputs=None, **named)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or default_run_folder(self.model)
