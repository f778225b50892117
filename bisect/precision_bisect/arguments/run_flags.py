"""The arguments of the main job."""

import argparse
from importlib.metadata import version
from pathlib import Path

from precision_bisect.arguments.engine_flags import add_engine_arguments, to_engine_settings
from precision_bisect.arguments.isolation_flags import (
    add_isolation_arguments,
    mebibytes,
    parse_workers,
)
from precision_bisect.arguments.output_flags import add_gate_arguments, add_output_arguments
from precision_bisect.arguments.parser import Parser, add_target, add_threads
from precision_bisect.arguments.sample_flags import (
    add_input_arguments,
    add_verdict_arguments,
    judged,
)
from precision_bisect.errors import PluginError, UsageError
from precision_bisect.options import (
    CALIBRATIONS,
    CERTIFY,
    DEFAULT_CALIBRATION,
    DEFAULT_COPIES,
    DEFAULT_HIGH,
    DEFAULT_LOW,
    DEFAULT_STRATEGY,
    Options,
)
from precision_bisect.plugins import BACKENDS, STRATEGIES, installed, load_strategy
from precision_bisect.precisions import HIGH_NAMES, LOW_NAMES, PrecisionName, parse_ladder
from precision_bisect.settings.durations import duration

_COMMANDS = """\
commands:
  precision-bisect MODEL   find the layers that must stay in FP32
  ... curve MODEL          say what breaks FP16, and what an error takes
  ... layers MODEL         list the candidates, and why every other node is none
  ... explain MODEL        say why layers need the precision, and what to change
  ... verify MODEL         build the found plan: does the engine honour it?
  ... export MODEL         write the files for deployment again
  ... show MODEL           print the final screen again
  ... report MODEL         write report.html, also while the run goes on
  ... status MODEL         say what a run is doing, from another terminal
  ... compare A B          say what changed between two runs
  ... batch JOBS           search many models, one after the other
  ... doctor               say what is installed, what works, what is missing

From explain to compare MODEL stands for its last run; its folder will do, too.
"""
_EPILOG = f"""\
exit codes:
  0    found, or nothing needs to be kept
  1    no plan satisfies the limits, or it is no precision problem; or more is kept than
       --max-kept or --baseline allow
  2    wrong usage or bad input
  3    ended early: budget or disk spent, or crash after crash; the best plan so far is
       written, if one has passed that runs a layer low
  4    not even FP32 builds, or runs
  70   an internal error, of which one line tells
  130  interrupted; the best plan so far is written likewise

{_COMMANDS}"""
_EXAMPLE = """\
example:
  precision-bisect model.onnx --tol 1e-2 --inputs inputs/
"""
_SHORT_EPILOG = f"""\
{_EXAMPLE}
{_COMMANDS}
--help-all shows every flag and the exit codes; each command has a --help, too.
"""
USAGE = f"""\
usage: precision-bisect MODEL [--tol T] [--inputs PATH] [flags]
       precision-bisect COMMAND ...

Which layers of an ONNX model must stay FP32 when the rest runs in FP16?

{_EXAMPLE}
{_COMMANDS}
precision-bisect --help shows the everyday flags, --help-all the rest.
"""
"""What is said where nothing is asked."""
_EVERYDAY = (
    *("model", "version", "inputs", "input_shapes", "tol", "atol", "rtol", "metric"),
    *("low", "high", "backend", "max_time", "min_speedup", "out", "resume", "overwrite", "json"),
)


def run_parser() -> Parser:
    """Return the parser of the main job."""
    parser = Parser(
        description="Find a minimal set of layers of an ONNX model that must stay FP32 when the "
        "rest\nruns in a lower precision, prove it, and explain it.",
        everyday=_EVERYDAY,
        short_usage="precision-bisect MODEL [--tol T] [--inputs PATH] [flags]",
        short_epilog=_SHORT_EPILOG,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", type=Path, help="the FP32 ONNX model; the word run may stand before it"
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('precision-bisect')}"
    )
    add_input_arguments(parser.add_argument_group("inputs"))
    add_verdict_arguments(parser.add_argument_group("verdict"))
    search = parser.add_argument_group("search")
    search.add_argument(
        "--culprits-only",
        action="store_const",
        dest="until",
        const="culprits",
        default="answer",
        help="end with the layers that hurt alone as much as all less sensitive ones together, "
        "and export that plan, whether it passes or not",
    )
    _search_arguments(search)
    add_speed_arguments(parser.add_argument_group("speed"))
    add_engine_arguments(parser.add_argument_group("engine"))
    output = parser.add_argument_group("output")
    add_output_arguments(output)
    add_gate_arguments(output)
    return parser


def curve_parser() -> Parser:
    """Return the parser of `precision-bisect curve`: the main job's, but for what is an answer."""
    parser = Parser(
        "curve",
        description="Draw the curve alone: the error by the number of layers that stay in the "
        "high type, and the layers that break the low one, in the time of the ranking and about "
        "20 evaluations. A search goes on from there with --resume.",
        everyday=_EVERYDAY,
        short_usage="precision-bisect curve MODEL [--tol T] [--inputs PATH] [flags]",
        short_epilog="--help-all shows every flag and the exit codes.",
        epilog="exit codes: 0 drawn, or nothing needs to be kept; 1 it is no precision problem; "
        "2 wrong usage or bad input; 3 ended early; 4 not even FP32 builds; 70 internal error; "
        "130 interrupted",
    )
    parser.add_argument(
        "model", type=Path, help="the FP32 ONNX model; of the folder of a run, what was drawn"
    )
    add_input_arguments(parser.add_argument_group("inputs"))
    add_verdict_arguments(parser.add_argument_group("verdict"))
    _search_arguments(parser.add_argument_group("search"))
    add_engine_arguments(parser.add_argument_group("engine"))
    add_output_arguments(parser.add_argument_group("output"))
    answers = ("max_latency", "min_speedup", "optuna_storage", "max_kept", "baseline")
    parser.set_defaults(until="curve", **dict.fromkeys(answers))
    return parser


def to_options(parsed: argparse.Namespace) -> Options:
    """Return the options that the parsed arguments ask for. Raises UsageError."""
    workers, gpus = parse_workers(parsed.workers)
    executor, _, address = parsed.executor.partition("=")
    return Options(
        model=parsed.model,
        out=parsed.out,
        resume=parsed.resume,
        overwrite=parsed.overwrite,
        fuse_norms=parsed.fuse_norms,
        take_branches=parsed.take_branches,
        **judged(parsed),
        low=parsed.low or DEFAULT_LOW,
        high=parsed.high or DEFAULT_HIGH,
        ladder=_ladder(parsed),
        calibration=parsed.calibration,
        backend=parsed.backend,
        target=parsed.target,
        engine=to_engine_settings(parsed),
        strategy=parsed.strategy,
        certify=parsed.certify,
        copies=parsed.copies,
        copies_failing=parsed.copies_failing,
        risk=parsed.risk,
        until=parsed.until,
        export_point=parsed.export_point,
        workers=workers,
        gpus=gpus,
        mixed_gpus=parsed.mixed_gpus,
        executor=executor,
        executor_address=address or None,
        isolate=parsed.isolate,
        forecast_on=parsed.forecast_on,
        trial_timeout_s=None if parsed.trial_timeout is None else duration(parsed.trial_timeout),
        trial_memory_mib=None if parsed.trial_memory is None else mebibytes(parsed.trial_memory),
        keep_engines=parsed.keep_engines,
        disk_cap_mib=mebibytes(parsed.disk_cap),
        max_latency_ms=parsed.max_latency,
        min_speedup=parsed.min_speedup,
        optuna_storage=parsed.optuna_storage,
        max_trials=parsed.max_trials,
        max_time_s=None if parsed.max_time is None else duration(parsed.max_time),
        seed=parsed.seed,
        threads=parsed.threads,
    )


def _ladder(parsed: argparse.Namespace) -> tuple[PrecisionName, ...]:
    if parsed.ladder is None:
        return ()
    if parsed.low or parsed.high:
        raise UsageError("--ladder excludes --low and --high", "it names all types itself")
    return parse_ladder(parsed.ladder)


def _search_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fuse-norms",
        action="store_true",
        help="first put LayerNorm, RMSNorm, GroupNorm, Softmax and Gelu together that the export "
        "took apart, check the model in FP32 against the original, and search that one: "
        "model.fused.onnx in the run folder",
    )
    group.add_argument(
        "--take-branches",
        action="store_true",
        help="first put the branches that every sample takes in place of their Ifs, so that the "
        "layers inside can be chosen, and search that model: model.taken.onnx in the run folder; "
        "done by itself where no layer is outside",
    )
    group.add_argument("--low", choices=LOW_NAMES, help="the low type (fp16)")
    group.add_argument("--high", choices=HIGH_NAMES, help="the type of kept layers (fp32)")
    group.add_argument(
        "--ladder",
        metavar="LOWEST,...,HIGHEST",
        help="instead of a pair: types from the lowest to the highest, such as int8,fp16,fp32; "
        "finds the layers that cannot be INT8, and among them those that cannot be FP16",
    )
    group.add_argument(
        "--calibration",
        choices=CALIBRATIONS,
        default=DEFAULT_CALIBRATION,
        help=f"how INT8 scales are found on the judging samples ({DEFAULT_CALIBRATION})",
    )
    group.add_argument(
        "--backend",
        choices=("auto", *installed(BACKENDS)),
        default="auto",
        help="what evaluates plans; auto takes TensorRT where it can run, else ONNX Runtime on "
        "CUDA, else the emulator (auto)",
    )
    add_target(group)
    group.add_argument(
        "--strategy",
        default=DEFAULT_STRATEGY,
        metavar="NAME",
        help=f"how to search ({DEFAULT_STRATEGY}). {_assumptions()}",
    )
    group.add_argument(
        "--certify",
        choices=CERTIFY,
        help="what shows that no kept layer can be dropped. full: each was dropped alone and that "
        "failed; forecasts: those that are forecast to fail by far are not built, if a random "
        "sample of them is and fails, nor are such plans in the search; none: no trials for it "
        "(full where the emulator judges, forecasts where trials are builds)",
    )
    group.add_argument(
        "--copies",
        type=int,
        default=DEFAULT_COPIES,
        metavar="N",
        help="judge an answer, and what proves it, on N copies of the samples that differ "
        f"slightly; 0: on the samples alone ({DEFAULT_COPIES})",
    )
    group.add_argument(
        "--copies-failing",
        type=int,
        default=0,
        metavar="N",
        help="so many of the copies may fail (0)",
    )
    group.add_argument(
        "--risk",
        type=_share,
        metavar="SHARE",
        help="keep more layers until an estimate from the spread of errors says that at most this "
        "share of unseen inputs is over the limit",
    )
    group.add_argument(
        "--workers",
        default="1",
        metavar="N|gpu:0,1",
        help="evaluate up to N plans side by side (1). Emulated, they share --threads; builds "
        "share one GPU, which needs the memory for N of them at a time. gpu:0,1,2,3: one worker "
        "on each of these GPUs",
    )
    group.add_argument(
        "--max-trials", type=int, metavar="N", help="stop after N trials, ranking not counted"
    )
    group.add_argument("--max-time", metavar="TIME", help="stop after this long: 90, 90s, 15m, 8h")
    add_isolation_arguments(group)
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of all chance (0)")
    add_threads(group)


def _share(text: str) -> float:
    """Return a share that is written as 5% or 0.05. Raises ArgumentTypeError."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no share, such as 5%") from error


def _assumptions() -> str:
    """Return each installed strategy with what it assumes."""
    texts = []
    for name in installed(STRATEGIES):
        try:
            texts.append(f"{name} assumes: {load_strategy(name).assumption}")
        except PluginError as error:
            texts.append(f"{name}: {error.message}")
    return ". ".join(texts).replace("%", "%%")


def add_speed_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the speed limits and where a study of them is kept."""
    group.add_argument(
        "--max-latency",
        type=float,
        metavar="MS",
        help="the answer must take at most so many milliseconds per inference; it is timed in "
        "turns with every layer high, and made faster where that costs no more than the tolerance",
    )
    group.add_argument(
        "--min-speedup",
        type=float,
        metavar="X",
        help="the answer must be at least X times as fast as every layer high. Both limits need "
        "an engine that is timed: ONNX Runtime on CUDA, TensorRT or TensorRT-RTX",
    )
    group.add_argument(
        "--optuna-storage",
        metavar="URL",
        help="with --strategy pareto: copy the study there as it grows, as for optuna-dashboard "
        "(sqlite:///pareto.db)",
    )
