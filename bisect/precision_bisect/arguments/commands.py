"""The arguments of the commands beside the main job."""

import argparse
from pathlib import Path

from precision_bisect.arguments.engine import add_engine_arguments
from precision_bisect.arguments.parser import Parser, folder
from precision_bisect.options import HIGH_NAMES, LOW_NAMES


def layers_parser() -> argparse.ArgumentParser:
    """Return the parser of `precision-bisect layers`."""
    parser = Parser(
        prog="precision-bisect layers",
        description="List the candidate layers, and every other node with the reason why a search "
        "leaves it alone.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, help="the ONNX model")
    parser.add_argument("--low", choices=LOW_NAMES, default="fp16", help="the low type (fp16)")
    parser.add_argument("--high", choices=HIGH_NAMES, default="fp32", help="the high type (fp32)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def verify_parser() -> argparse.ArgumentParser:
    """Return the parser of `precision-bisect verify`."""
    parser = Parser(
        prog="precision-bisect verify",
        description="Build the engine of a finished run's plan once, look into it, and say for "
        "each kept layer whether the engine computes it at the precision that was asked for. "
        "TensorRT-RTX builds and looks on a machine without a GPU, too.",
        epilog="exit codes: 0 no kept layer is demoted; 1 one is, or the build fails; 2 wrong "
        "usage or bad input",
        allow_abbrev=False,
    )
    _model_and_plan(parser)
    parser.add_argument(
        "--backend",
        choices=("auto", "tensorrt", "tensorrt-rtx", "onnxruntime"),
        default="auto",
        help="what builds the engine; auto takes the first that is installed (auto)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_engine_arguments(parser.add_argument_group("engine"))
    return parser


def export_parser() -> argparse.ArgumentParser:
    """Return the parser of `precision-bisect export`."""
    parser = Parser(
        prog="precision-bisect export",
        description="Write the files for deployment again from a finished run: model.mixed.onnx, "
        "layerPrecisions.txt, trtexec.sh, autocast-exclude.txt, polygraphy_constraints.py.",
        allow_abbrev=False,
    )
    _model_and_plan(parser)
    parser.add_argument(
        "--out", type=folder, metavar="DIR", help="where to write (the run's folder)"
    )
    add_engine_arguments(parser.add_argument_group("engine"))
    return parser


def doctor_parser() -> argparse.ArgumentParser:
    """Return the parser of `precision-bisect doctor`."""
    parser = Parser(
        prog="precision-bisect doctor",
        description="Say what is installed, which backends can run here and why others cannot, "
        "and what to install for more.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _model_and_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="the ONNX model that was searched")
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="PATH",
        help="result.json or the run folder that holds it (MODEL.precision-bisect)",
    )
