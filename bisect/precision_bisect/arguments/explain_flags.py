"""The arguments of `precision-bisect explain`."""

import argparse
from pathlib import Path

from precision_bisect.arguments.engine_flags import add_custom_ops, libraries
from precision_bisect.arguments.parser import (
    Parser,
    add_pair,
    add_target,
    add_threads,
    add_verbose,
)
from precision_bisect.arguments.sample_flags import (
    add_input_arguments,
    add_verdict_arguments,
    judged,
)
from precision_bisect.options import Options
from precision_bisect.settings.engine_settings import EngineSettings

WORST = 10
"""So many layers are explained where none is named."""


def explain_parser() -> Parser:
    """Return the parser of `precision-bisect explain`."""
    parser = Parser(
        "explain",
        mixed=True,
        description="Say why layers need the high precision, and what to change so that they do "
        "not, without a search: the named layers, or those that hurt most when they alone run "
        "low. Computes in FP32 and asks the emulator. Of a run folder, and of a model alone that "
        "was searched, says what the last run found.",
    )
    parser.add_argument("model", type=Path, help="the FP32 ONNX model, or the folder of a run")
    parser.add_argument(
        "layers", nargs="*", default=[], metavar="LAYER", help="layers, as `layers` lists them"
    )
    parser.add_argument(
        "--worst",
        type=int,
        default=WORST,
        metavar="N",
        help=f"how many layers where none is named ({WORST})",
    )
    add_verbose(parser, "all layers, with where values are largest and how errors grow")
    parser.add_argument("--json", action="store_true", help="print JSON, as diagnosis.json")
    add_input_arguments(parser.add_argument_group("inputs"))
    add_verdict_arguments(parser.add_argument_group("verdict"))
    group = parser.add_argument_group("types")
    add_pair(group)
    add_target(group)
    add_threads(group)
    add_custom_ops(group)
    return parser


def asks_only_for_words(parsed: argparse.Namespace) -> bool:
    """Return whether no flag asks for anything but how to say it: what a run found will do."""
    said = ("model", "json", "verbose")
    default = explain_parser().read([str(parsed.model)])
    return all(
        getattr(default, key) == value for key, value in vars(parsed).items() if key not in said
    )


def to_explain_options(parsed: argparse.Namespace) -> Options:
    """Return the options of a run of the emulator over what was asked. Raises UsageError."""
    return Options(
        model=parsed.model,
        **judged(parsed),
        low=parsed.low,
        high=parsed.high,
        backend="emulated",
        target=parsed.target,
        engine=EngineSettings(ort_custom_ops=libraries(parsed.ort_custom_ops)),
        threads=parsed.threads,
    )
