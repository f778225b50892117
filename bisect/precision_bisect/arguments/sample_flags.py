"""The arguments that say which samples are run, and which outputs pass."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from precision_bisect.comparators.check_words import READY_MADE
from precision_bisect.comparators.tolerance import WIDE, parse_limits
from precision_bisect.inputs.input_shapes import parse_shapes
from precision_bisect.inputs.value_ranges import parse_ranges
from precision_bisect.options import DEFAULT_METRIC, DEFAULT_TOLERANCE, Limits
from precision_bisect.plugins import COMPARATORS, installed


def _limits(texts: Sequence[str] | None, flag: str) -> dict[str, float] | float | None:
    """Return the limits that the texts of a flag say, None for no text. Raises UsageError."""
    if texts is None:
        return None
    limits = parse_limits(texts, flag)
    return limits[""] if set(limits) == {""} else limits


class JudgedInputs(TypedDict):
    """The options that say which samples are run, and which outputs pass."""

    inputs: Path | None
    reference: Path | None
    input_shapes: Mapping[str, tuple[int, ...]]
    ranges: Mapping[str, tuple[float, float]]
    synthetic: int
    holdout: int
    metric: str
    tol: Limits
    atol: Limits
    rtol: Limits
    quantile: float
    check: str | None


def judged(parsed: argparse.Namespace) -> JudgedInputs:
    """Return these options as the parsed arguments say them. Raises UsageError."""
    return JudgedInputs(
        inputs=parsed.inputs,
        reference=parsed.reference,
        input_shapes=parse_shapes(parsed.input_shapes or ()),
        ranges=parse_ranges(parsed.range or ()),
        synthetic=parsed.synthetic,
        holdout=parsed.holdout,
        metric=parsed.metric,
        tol=_limits(parsed.tol, "--tol"),
        atol=_limits(parsed.atol, "--atol"),
        rtol=_limits(parsed.rtol, "--rtol"),
        quantile=parsed.quantile,
        check=parsed.check,
    )


def add_input_arguments(group: argparse._ArgumentGroup) -> None:
    """Add what says where the samples come from."""
    group.add_argument(
        "--inputs",
        type=Path,
        metavar="PATH",
        help="a .npz or .npy, a folder of these, Polygraphy's .json (run --save-inputs), or a .py "
        "with load_data(). Of many the hardest are searched with, and all judge the answer. "
        "Without it inputs are made up",
    )
    group.add_argument(
        "--reference",
        type=Path,
        metavar="PATH",
        help="the FP32 outputs of --inputs instead of ONNX Runtime's own: a .npz or a folder of "
        "them, by output name, or Polygraphy's .json (run --save-outputs); `engine` for those of "
        "the backend's own engine in FP32",
    )
    group.add_argument(
        "--input-shapes",
        action="append",
        metavar="NAME:1x3x224x224",
        help="shapes for made-up inputs with dynamic dimensions; comma separated or repeated",
    )
    group.add_argument(
        "--range",
        action="append",
        metavar="NAME=0:999",
        help="between which values an input may lie: the answer is tried at both ends, where the "
        "error of an operator grows with the input; comma separated or repeated",
    )
    group.add_argument(
        "--synthetic", type=int, default=4, metavar="N", help="how many to make up (4)"
    )
    group.add_argument(
        "--holdout",
        type=int,
        default=0,
        metavar="N",
        help="judge the answer by the last N samples, which never join the search (0)",
    )


def add_verdict_arguments(group: argparse._ArgumentGroup) -> None:
    """Add what says which outputs pass."""
    group.add_argument(
        "--tol",
        action="append",
        metavar="T",
        help=f"tolerance of all outputs, or per output as logits=1e-2,boxes=0.5 (default "
        f"{DEFAULT_TOLERANCE:g}). Below {WIDE:g} an element passes that is within T absolutely or "
        f"relatively, from {WIDE:g} on only absolutely. Integer and boolean outputs must be "
        "equal; classes=0.02 lets that share of their elements differ",
    )
    group.add_argument(
        "--atol", action="append", metavar="T", help="absolute limits alone, written as --tol's"
    )
    group.add_argument(
        "--rtol", action="append", metavar="T", help="relative limits alone, written as --tol's"
    )
    group.add_argument(
        "--metric",
        choices=tuple(installed(COMPARATORS)),
        default=DEFAULT_METRIC,
        help=f"the comparator; those that come along are Polygraphy's ({DEFAULT_METRIC}). The "
        "tolerance of l2 is the norm, of cosine 1 - cosine, of psnr and snr the least decibels",
    )
    group.add_argument(
        "--quantile", type=float, default=0.99, metavar="Q", help="for --metric quantile (0.99)"
    )
    group.add_argument(
        "--check",
        metavar="CHECK",
        help=f"judge by what counts in the task: {', '.join(READY_MADE)}, of all outputs or of "
        "some (top1:logits). Or by SCRIPT.py:FUNCTION, a function(outputs, reference) of lists "
        "of dicts over all samples, which returns an error for --tol, or True or False",
    )
