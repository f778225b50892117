"""The arguments of `precision-bisect explain`."""

import argparse
from pathlib import Path

from precision_bisect.arguments.parser import Parser
from precision_bisect.arguments.samples import (
    add_input_arguments,
    add_verdict_arguments,
    judged,
)
from precision_bisect.options import (
    DEFAULT_HIGH,
    DEFAULT_LOW,
    HIGH_NAMES,
    LOW_NAMES,
    Options,
)

WORST = 10
"""So many layers are explained where none is named."""


def explain_parser() -> argparse.ArgumentParser:
    """Return the parser of `precision-bisect explain`."""
    parser = Parser(
        "explain",
        description="Say why layers need the high precision, and what to change so that they do "
        "not, without a search: the named layers, or those that hurt most when they alone run "
        "low. Computes in FP32 and asks the emulator. Given a run folder, says what that run "
        "found.",
    )
    parser.add_argument("model", type=Path, help="the FP32 ONNX model, or the folder of a run")
    parser.add_argument(
        "layers", nargs="*", metavar="LAYER", help="layers, as `layers` lists them"
    )
    parser.add_argument(
        "--worst",
        type=int,
        default=WORST,
        metavar="N",
        help=f"how many layers where none is named ({WORST})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, as diagnosis.json")
    add_input_arguments(parser.add_argument_group("inputs"))
    add_verdict_arguments(parser.add_argument_group("verdict"))
    group = parser.add_argument_group("types")
    group.add_argument("--low", choices=LOW_NAMES, default=DEFAULT_LOW, help="the low type (fp16)")
    group.add_argument(
        "--high", choices=HIGH_NAMES, default=DEFAULT_HIGH, help="the high type (fp32)"
    )
    group.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="of ONNX Runtime; 0: what the layers are large enough for, at most 8 and the cores "
        "that this process may use (0)",
    )
    return parser


def to_explain_options(parsed: argparse.Namespace) -> Options:
    """Return the options of a run of the emulator over what was asked. Raises UsageError."""
    return Options(
        model=parsed.model,
        **judged(parsed),
        low=parsed.low,
        high=parsed.high,
        backend="emulated",
        threads=parsed.threads,
    )
