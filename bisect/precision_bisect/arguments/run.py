"""The arguments of the main job."""

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from precision_bisect.arguments.engine import add_engine_arguments, to_engine_settings
from precision_bisect.arguments.parser import Parser, folder
from precision_bisect.arguments.speed import add_speed_arguments
from precision_bisect.comparators.tolerance import parse_limits
from precision_bisect.durations import duration
from precision_bisect.errors import PluginError, UsageError
from precision_bisect.inputs.shapes import parse_shapes
from precision_bisect.options import (
    BACKENDS,
    CALIBRATIONS,
    CERTIFY,
    DEFAULT_CALIBRATION,
    DEFAULT_HIGH,
    DEFAULT_LOW,
    DEFAULT_STRATEGY,
    DEFAULT_TOLERANCE,
    HIGH_NAMES,
    LOW_NAMES,
    METRICS,
    Options,
    PrecisionName,
)
from precision_bisect.plugins import STRATEGIES, installed, load_strategy
from precision_bisect.precisions import parse_ladder

_EPILOG = """\
exit codes:
  0    found, or nothing needs to be kept
  1    no plan satisfies the limits, or it is no precision problem
  2    wrong usage or bad input
  3    budget spent; the best plan so far is written
  130  interrupted; the best plan so far is written

other commands:
  precision-bisect layers MODEL   list the candidates, and every exclusion with its reason
  precision-bisect verify MODEL   build the found plan once; say which layers the engine honours
  precision-bisect export MODEL   write the files for deployment again from a finished run
  precision-bisect doctor         say what is installed, what works, what to install for more
"""


def run_parser() -> argparse.ArgumentParser:
    """Return the parser of the main job."""
    parser = Parser(
        prog="precision-bisect",
        description="Find a minimal set of layers of an ONNX model that must stay FP32 when the "
        "rest runs in a lower precision, prove it, and explain it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, help="the FP32 ONNX model")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('precision-bisect')}"
    )
    _input_arguments(parser.add_argument_group("inputs"))
    _verdict_arguments(parser.add_argument_group("verdict"))
    _search_arguments(parser.add_argument_group("search"))
    add_speed_arguments(parser.add_argument_group("speed"))
    add_engine_arguments(parser.add_argument_group("engine"))
    _output_arguments(parser.add_argument_group("output"))
    return parser


def to_options(parsed: argparse.Namespace) -> Options:
    """Return the options that the parsed arguments ask for. Raises UsageError."""
    return Options(
        model=parsed.model,
        out=parsed.out,
        resume=parsed.resume,
        overwrite=parsed.overwrite,
        inputs=parsed.inputs,
        input_shapes=parse_shapes(parsed.input_shapes or ()),
        synthetic=parsed.synthetic,
        holdout=parsed.holdout,
        metric=parsed.metric,
        tol=_limits(parsed.tol, "--tol"),
        atol=_limits(parsed.atol, "--atol"),
        rtol=_limits(parsed.rtol, "--rtol"),
        quantile=parsed.quantile,
        check=parsed.check,
        low=parsed.low or DEFAULT_LOW,
        high=parsed.high or DEFAULT_HIGH,
        ladder=_ladder(parsed),
        calibration=parsed.calibration,
        backend=parsed.backend,
        engine=to_engine_settings(parsed),
        strategy=parsed.strategy,
        certify=parsed.certify,
        workers=parsed.workers,
        max_latency_ms=parsed.max_latency,
        min_speedup=parsed.min_speedup,
        optuna_storage=parsed.optuna_storage,
        max_trials=parsed.max_trials,
        max_time_s=None if parsed.max_time is None else duration(parsed.max_time),
        seed=parsed.seed,
        threads=parsed.threads,
    )


def _limits(texts: Sequence[str] | None, flag: str) -> dict[str, float] | float | None:
    if texts is None:
        return None
    limits = parse_limits(texts, flag)
    return limits[""] if set(limits) == {""} else limits


def _ladder(parsed: argparse.Namespace) -> tuple[PrecisionName, ...]:
    if parsed.ladder is None:
        return ()
    if parsed.low or parsed.high:
        raise UsageError("--ladder excludes --low and --high", "it names all types itself")
    return parse_ladder(parsed.ladder)


def _input_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--inputs",
        type=Path,
        metavar="PATH",
        help="a .npz, a folder of .npz or .npy, Polygraphy's .json (run --save-inputs), or a .py "
        "with load_data(); every sample is used. Without it inputs are made up",
    )
    group.add_argument(
        "--input-shapes",
        action="append",
        metavar="NAME:1x3x224x224",
        help="shapes for made-up inputs with dynamic dimensions; comma separated or repeated",
    )
    group.add_argument(
        "--synthetic", type=int, default=4, metavar="N", help="how many to make up (4)"
    )
    group.add_argument(
        "--holdout",
        type=int,
        default=0,
        metavar="N",
        help="keep the last N samples for the final re-check (0)",
    )


def _verdict_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tol",
        action="append",
        metavar="T",
        help="tolerance: one number (atol = rtol = T, an element passes within either), or per "
        f"output as logits=1e-2,boxes=1e-1 (default {DEFAULT_TOLERANCE:g})",
    )
    group.add_argument("--atol", action="append", metavar="T", help="absolute part, as --tol")
    group.add_argument("--rtol", action="append", metavar="T", help="relative part, as --tol")
    group.add_argument(
        "--metric",
        choices=METRICS,
        default="elementwise",
        help="Polygraphy's comparator (elementwise). The tolerance of l2 is the norm, of cosine "
        "1 - cosine, of psnr and snr the least decibels",
    )
    group.add_argument(
        "--quantile", type=float, default=0.99, metavar="Q", help="for --metric quantile (0.99)"
    )
    group.add_argument(
        "--check",
        metavar="SCRIPT.py:FUNCTION",
        help="judge by function(outputs, reference), lists of dicts over all samples; it returns "
        "an error for --tol, or True or False",
    )


def _search_arguments(group: argparse._ArgumentGroup) -> None:
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
        choices=BACKENDS,
        default="auto",
        help="what evaluates plans; auto takes TensorRT where it can run, else ONNX Runtime on "
        "CUDA, else the emulator (auto)",
    )
    group.add_argument(
        "--strategy",
        default=DEFAULT_STRATEGY,
        metavar="NAME",
        help=f"how to search ({DEFAULT_STRATEGY}). {_assumptions()}",
    )
    group.add_argument(
        "--certify",
        choices=CERTIFY,
        help="what proves that no kept layer can be dropped. full: each was dropped alone and "
        "that failed; groups: a failing plan that kept all others and more counts, too, which "
        "assumes that keeping more never hurts; none: no trials for it (full where the emulator "
        "judges, groups where trials are builds)",
    )
    group.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="evaluate up to N plans side by side (1). Emulated, they share --threads; builds "
        "share one GPU, which needs the memory for N of them at a time",
    )
    group.add_argument(
        "--max-trials", type=int, metavar="N", help="stop after N trials, ranking not counted"
    )
    group.add_argument("--max-time", metavar="TIME", help="stop after this long: 90, 90s, 15m, 8h")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of all chance (0)")
    group.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of ONNX Runtime, 0 for all cores (0)"
    )


def _assumptions() -> str:
    """Return each installed strategy with what it assumes."""
    texts = []
    for name in installed(STRATEGIES):
        try:
            texts.append(f"{name} assumes: {load_strategy(name).assumption}")
        except PluginError as error:
            texts.append(f"{name}: {error.message}")
    return ". ".join(texts).replace("%", "%%")


def _output_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out", type=folder, metavar="DIR", help="the run folder (MODEL.precision-bisect)"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with the run in the folder, or begin it"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="replace the run that the folder holds"
    )
    group.add_argument("--json", action="store_true", help="print result.json instead of text")
