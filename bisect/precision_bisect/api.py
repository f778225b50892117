"""The same job as the command line's, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from precision_bisect.layer_table import Layer
from precision_bisect.options import (
    CalibrationName,
    Certify,
    ForecastOn,
    Isolate,
    Limits,
    Metric,
    Options,
    Until,
)
from precision_bisect.precisions import HighName, LowName, PrecisionName
from precision_bisect.results.result import Result
from precision_bisect.search.events import Observer, Warned, ignore
from precision_bisect.settings.engine_settings import EngineSettings

if TYPE_CHECKING:
    from precision_bisect.protocols import Sample


class FindOptions(TypedDict, total=False):
    """Further keyword arguments of `find`; each means what the flag of that name does.

    `until` is "culprits" for `--culprits-only`, "curve" for the command `curve`.
    """

    resume: bool
    overwrite: bool
    reference: Path | None
    fuse_norms: bool
    take_branches: bool
    input_shapes: Mapping[str, tuple[int, ...]]
    synthetic: int
    holdout: int
    metric: Metric
    atol: Limits
    rtol: Limits
    quantile: float
    check: str | None
    low: LowName
    high: HighName
    ladder: Sequence[PrecisionName]
    calibration: CalibrationName
    backend: str
    engine: EngineSettings
    strategy: str
    certify: Certify | None
    copies: int
    copies_failing: int
    until: Until
    export_point: str
    workers: int
    gpus: Sequence[str]
    mixed_gpus: bool
    cluster: str | None
    isolate: Isolate
    forecast_on: ForecastOn
    trial_timeout_s: float | None
    trial_memory_mib: float | None
    keep_engines: bool
    disk_cap_mib: float
    max_latency_ms: float | None
    min_speedup: float | None
    optuna_storage: str | None
    max_trials: int | None
    max_time_s: float | None
    seed: int
    threads: int


def find(
    model: str | Path,
    *,
    tol: Limits = None,
    inputs: "str | Path | Sequence[Sample] | None" = None,
    out: str | Path | None = None,
    observer: Observer = ignore,
    **options: Unpack[FindOptions],
) -> Result:
    """Find a minimal set of layers of an ONNX model that must stay in high precision.

    `tol` is one limit or a mapping from output name to limit ("" for the default); `inputs` a path
    or a list of samples, each a dict from input name to array; `out` the run folder, which holds
    what the command leaves in it, `report.html` included; `observer` is called with every event.
    Times are in seconds. Raises a PrecisionBisectError for bad input.
    """
    from precision_bisect.plugins import leave_page

    asked = Options(
        model=Path(model),
        tol=tol,
        inputs=Path(inputs) if isinstance(inputs, str) else inputs,
        out=None if out is None else Path(out),
        **options,
    )
    result = run(asked, observer)
    if trouble := leave_page(asked.folder):
        observer(Warned(message=trouble))
    return result


def run(options: Options, observer: Observer = ignore) -> Result:
    """Search as the options say, write the run folder, and return the result.

    Raises a PrecisionBisectError for bad input, with nothing lost, and for a folder that another
    process is at work in. A spent budget and Ctrl-C during the search end it with the best plan so
    far.
    """
    from precision_bisect.cluster.connection import reached
    from precision_bisect.ladder.climb import climb
    from precision_bisect.machine.stopping import limited
    from precision_bisect.machine.workdir import workdir
    from precision_bisect.monitoring.attend import Attended
    from precision_bisect.pipeline.run import run_pair
    from precision_bisect.run_folder.locking import RunLock

    with (
        limited(options.max_time_s, options.trial_timeout_s),
        RunLock(options.folder) as lock,
        workdir() as work,
        Attended(options.folder, observer) as attended,
        reached(options, work) as cluster,
    ):
        search = climb if options.ladder else run_pair
        result = search(options, attended, work, lock, cluster)
        attended.conclude(result)
        return result


def layers(model: str | Path) -> Sequence[Layer]:
    """Return every node of the model's main graph, candidates and excluded ones with the reason.

    Raises ModelError for a model that cannot be read.
    """
    from precision_bisect.model.load import load_model

    return load_model(Path(model)).table.layers
