"""The keyword arguments of `find`, written by docs/make_find_options.py from fields of Options."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from precision_bisect.options import CalibrationName, Certify, Unit, Until
from precision_bisect.precisions import HighName, LowName, PrecisionName
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.sample_options import Channels, Layout, Limits
from precision_bisect.settings.targets import TargetChoice
from precision_bisect.settings.worker_options import ForecastOn, Isolate


class FindOptions(TypedDict, total=False):
    """Further keyword arguments of `find`, which says what they mean."""

    image_size: tuple[int, int] | None
    scale: float | None
    mean: Sequence[float]
    std: Sequence[float]
    layout: Layout | None
    channels: Channels | None
    reference: Path | None
    input_shapes: Mapping[str, tuple[int, ...]]
    ranges: Mapping[str, tuple[float, float]]
    synthetic: int
    holdout: int
    atol: Limits
    rtol: Limits
    metric: str | Callable[..., Any]
    quantile: float
    check: str | Callable[..., float | bool] | None
    gpus: Sequence[str]
    executor_address: str | None
    workers: int
    executor: str
    mixed_gpus: bool
    isolate: Isolate
    forecast_on: ForecastOn
    trial_timeout_s: float | None
    trial_memory_mib: float | None
    threads: int
    keep_engines: bool
    disk_cap_mib: float
    engine: EngineSettings
    until: Until
    fuse_norms: bool
    take_branches: bool
    low: LowName
    high: HighName
    ladder: Sequence[PrecisionName]
    keep: Sequence[str]
    low_only: Sequence[str]
    start: str | Path | None
    calibration: CalibrationName
    backend: str
    target: TargetChoice
    strategy: str | Callable[..., Any]
    by: Unit
    certify: Certify | None
    copies: int
    copies_failing: int
    risk: float | None
    max_trials: int | None
    max_time_s: float | None
    seed: int
    max_latency_ms: float | None
    min_speedup: float | None
    optuna_storage: str | None
    resume: bool
    overwrite: bool
    export_point: str
