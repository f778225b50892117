"""The same job as the command line's, from Python."""

import builtins
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from precision_bisect.errors import (
    PluginError,
    PrecisionBisectError,
    SearchInterrupted,
    UsageError,
    errors_of_inputs,
    errors_of_others,
    in_words,
    ran_out,
    shortened,
)
from precision_bisect.layer_table import Layer
from precision_bisect.options import CalibrationName, Certify, Objective, Options, Unit, Until
from precision_bisect.precisions import HighName, LowName, PrecisionName
from precision_bisect.runs.monitoring.events import Event, Observer, Warned, ignore, tell_all
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import GIVEN_MODEL, OWN_FILES
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.keywords import by_units, in_keywords
from precision_bisect.settings.sample_options import (
    Channels,
    Layout,
    Limits,
    Normalization,
    Resize,
)
from precision_bisect.settings.targets import TargetChoice
from precision_bisect.settings.worker_options import ForecastOn, Isolate, RankBy

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from precision_bisect.protocols import Sample


class FindOptions(TypedDict, total=False):
    """Further keyword arguments of `find`, which says what they mean."""

    steps: int
    feed: Sequence[str]
    each_step: bool
    loop: str | Callable[..., Any] | None
    image_size: tuple[int, int] | None
    resize: Resize | None
    pad_value: int | None
    normalize: Normalization | None
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
    rank_by: RankBy
    trial_timeout_s: float | None
    trial_timeout: str
    trial_memory_mib: float | None
    trial_memory: str
    threads: int
    keep_engines: bool
    disk_cap_mib: float
    disk_cap: str
    engine: EngineSettings
    until: Until
    fuse_norms: bool | None
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
    objective: Objective
    by: Unit
    certify: Certify | None
    copies: int
    copies_failing: int
    risk: float | None
    max_trials: int | None
    max_time_s: float | None
    max_time: str
    seed: int
    max_latency_ms: float | None
    max_latency: str
    min_speedup: float | None
    optuna_storage: str | None
    resume: bool
    overwrite: bool
    export_point: str


def find(
    model: "str | Path | onnx.ModelProto",
    *,
    tol: Limits = None,
    inputs: "str | Path | Sample | np.ndarray | Iterable[Sample | np.ndarray] | None" = None,
    out: str | Path | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    **options: Unpack[FindOptions],
) -> Result:
    """Find a minimal set of layers of an ONNX model that must stay in high precision.

    A `model` that is no path is written into the run folder, as `model.given.onnx`. `tol` is one
    limit or a mapping from output name to limit ("" for the default), 0.01 where no limit is
    given; `inputs` a path, a sample (a dict from input name to array), or a list or generator of
    samples, and without it samples are made up; `out` the run folder, which holds what the command
    leaves in it, `report.html` included; `observer` is called with every event, and `progress`
    shows a bar, in the terminal or in the output of a notebook's cell, where None shows it, too.
    Of a model with one input a sample may be its array.

    `check` may be a function, `metric` and `strategy` what makes one: a class, mostly. Trials in
    other processes and `resume` need a name instead.

    The others mean what the flags of their names do; names that end in a unit, as `max_time_s` for
    --max-time, take numbers in it, and those without, as `max_time="10m"`, what the flag takes.
    These have no flag of their name: `until`, which is "culprits"
    for --culprits-only and "curve" for the command `curve`; `gpus`, the names in --workers
    gpu:0,1, one for each of `workers`; `executor_address`, as in --executor NAME=ADDRESS;
    `engine`, an EngineSettings with the flags of engines.

    Raises a PrecisionBisectError for bad input; `str` of it says what to do, too. Ctrl-C during
    the search, and while its answer is explained, raises SearchInterrupted, a KeyboardInterrupt
    with the `result` so far; before it a plain one.
    """
    from precision_bisect import plugins

    shown = _in_notebook() if progress is None else progress
    report = plugins.load(plugins.REPORTS, "terminal") if shown else None
    display = nullcontext(ignore) if report is None else report(sys.stdout, sys.stderr)

    def notify(event: Event) -> None:
        # Warnings name flags; here an option is a keyword.
        if isinstance(event, Warned):
            event = Warned(message=_in_python(event.message))
        tell(event)

    with errors_in_python(), display as watching:
        texts = by_units(options, Options)
        _check_names(texts)
        if not callable(observer or ignore):
            raise UsageError(f"observer cannot be {observer!r}", "give a function of one event")
        tell = tell_all(watching, _guarded(observer or ignore))
        named = isinstance(model, str | Path | None)
        run_options = Options(
            model=path_of(model, "model") if named else Path(GIVEN_MODEL),
            tol=tol,
            inputs=_samples(inputs),
            out=None if out is None else path_of(out, "out"),
            **texts,
        )
        result = run(run_options, notify, None if named else model, _begun.get())
        # The search is over: what it found is not lost to a Ctrl-C while its page is written.
        try:
            if result.layers_total and (trouble := plugins.leave_page(run_options.folder)):
                notify(Warned(message=trouble))
        except KeyboardInterrupt as interrupt:
            raise SearchInterrupted(result) from interrupt
        if result.cut_short or result.status is Status.INTERRUPTED:
            raise SearchInterrupted(result)
        return result


def _in_notebook() -> bool:
    """Tell whether a cell of a notebook calls, as rich does; a plain shell is none."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _guarded(observer: Observer) -> Observer:
    """Return an observer whose errors are told as such: some would end a generator in silence."""

    def observe(event: Event) -> None:
        with errors_of_others(PluginError, "the observer failed", "mend it"):
            observer(event)

    return observe


def load(run: str | Path) -> Result:
    """Return the result of a run folder, or of the `result.json` in one, as `find` returned it.

    Raises a PrecisionBisectError where there is none, and for one that is damaged.
    """
    from precision_bisect.runs.results.saved import read_saved

    with errors_in_python():
        return read_saved(path_of(run, "run")).result


_begun: ContextVar[float | None] = ContextVar("_begun", default=None)


@contextmanager
def begun_now() -> Iterator[None]:
    """Have a `find` inside the block have begun with it, as `max_time_s` counts."""
    token = _begun.set(time.monotonic())
    try:
        yield
    finally:
        _begun.reset(token)


@contextmanager
def errors_in_python() -> Iterator[None]:
    """Have errors name keywords; what a command prints after one is a note of the exception."""
    try:
        yield
    except PrecisionBisectError as error:
        # It may have a whole model in it.
        error.message = _in_python(shortened(error.message, 2000))
        error.hint = _in_python(error.hint)
        if error.further:
            error.add_note(error.further)
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if lack := ran_out(error):
            raise lack from error
        if not isinstance(error, OSError):
            raise
        # No file has to do with it where the system has no more descriptors or processes.
        if error.filename is None:
            raise UsageError(in_words(error), "mend that, then go on with resume=True") from error
        name = shortened(str(error.filename))
        raise UsageError(f"{name}: {error.strerror}", "choose another path") from error


def _in_python(text: str) -> str:
    return in_keywords(text, Options)


def path_of(value: object, name: str) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise UsageError(f"{name} cannot be {value!r}", "give a path")
    return Path(value)


def _samples(inputs: Any) -> Any:
    """Return one sample as the list that it stands for; what yields samples is asked by the run.

    Raises InputError for what cannot even be looked at.
    """
    if isinstance(inputs, str):
        return path_of(inputs, "inputs")
    # An array would be taken apart into its rows.
    with errors_of_inputs():
        return [inputs] if isinstance(inputs, Mapping) or hasattr(inputs, "shape") else inputs


def _written(options: Options, proto: object, work: Path) -> Options:
    """Return the options over the model's file, which is in `work` where Python gave the model.

    Raises ModelError.
    """
    if proto is None:
        return options
    from precision_bisect.graphs.typed.model_files import save_given

    save_given(proto, work / GIVEN_MODEL)
    return replace(options, model=work / GIVEN_MODEL, out=options.folder)


def _check_names(options: Mapping[str, object]) -> None:
    """Raise UsageError for a name that is no option."""
    names = FindOptions.__annotations__
    for name in options:
        if name not in names:
            begun = [
                option for option in ("tol", "inputs", "out", *names) if name.startswith(option)
            ]
            matches = begun or get_close_matches(name, ["tol", "inputs", "out", *names], 1, 0.7)
            hint = f"did you mean {matches[0]}? " if matches else ""
            raise UsageError(f"find() has no option {name!r}", f"{hint}help(find) lists them")


def _signature() -> inspect.Signature:
    """Return what `find` takes, each option by its name with its default."""
    signature = inspect.signature(find)
    named = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    # FindOptions is a TypedDict, which has no defaults: those of Options hold.
    defaults = {field.name: field.default for field in fields(Options)}
    further = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if defaults[name] is MISSING else defaults[name],
            annotation=kind,
        )
        for name, kind in FindOptions.__annotations__.items()
        if name in defaults
    ]
    return signature.replace(parameters=[*named, *further])


setattr(find, "__signature__", _signature())  # noqa: B010 - functions do not declare it


def run(
    options: Options, observer: Observer = ignore, proto: object = None, begun: float | None = None
) -> Result:
    """Search as the options say, write the run folder, and return the result.

    A `proto`, an `onnx.ModelProto`, is searched instead of the options' model, which then only
    names the folder. It has `begun` then, by `time.monotonic`, or begins now. Raises a
    PrecisionBisectError for bad input, with nothing lost, and for a folder that another process is
    at work in. A spent budget and Ctrl-C end the search with the best plan so far, and cut short
    what explains an answer.
    """
    # What is imported next takes seconds on a machine with other work.
    begun = time.monotonic() if begun is None else begun
    from precision_bisect.execution.executor import executor_plugin
    from precision_bisect.exports.recheck import standing_by
    from precision_bisect.machine.stopping import limited
    from precision_bisect.machine.workdir import workdir
    from precision_bisect.pipeline.ladder.climb import climb
    from precision_bisect.pipeline.run import run_pair
    from precision_bisect.runs.locking import RunLock
    from precision_bisect.runs.monitoring.attend import Attended

    model = options.model
    lost = model.name in OWN_FILES and model.resolve().parent == options.folder.resolve()
    if lost and proto is None and options.overwrite:
        raise UsageError(f"--overwrite would remove {model}", "choose another --out, or copy it")
    # Before the folder is touched: it checks the options.
    plugin = executor_plugin(options)
    with (
        standing_by(),
        limited(options.max_time_s, options.trial_timeout_s, begun),
        RunLock(options.folder) as lock,
        workdir() as work,
        Attended(options.folder, observer) as attended,
        plugin.opened(run_options := _written(options, proto, work), work) as executor,
    ):
        search = climb if options.ladder else run_pair
        result = search(run_options, attended, work, lock, executor)
        attended.conclude(result)
        return result


def layers(model: str | Path) -> Sequence[Layer]:
    """Return every node of the model's main graph, candidates and excluded ones with the reason.

    Raises a PrecisionBisectError for a model that cannot be read.
    """
    from precision_bisect.graphs.load import load_model

    return load_model(path_of(model, "model")).table.layers
