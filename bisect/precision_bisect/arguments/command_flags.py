"""The arguments of the commands beside the main job."""

import argparse
from pathlib import Path

from precision_bisect.arguments.engine_flags import add_custom_ops, add_engine_arguments, as_in_run
from precision_bisect.arguments.output_flags import add_explain_search, add_export_point
from precision_bisect.arguments.parser import Parser, add_pair, add_verbose, folder

DEFAULT_BUNDLE = Path("precision-bisect-bundle.tar.gz")


def layers_parser() -> Parser:
    """Return the parser of `precision-bisect layers`."""
    parser = Parser(
        "layers",
        description="List the candidate layers, and every other node with the reason why a search "
        "leaves it alone.",
    )
    parser.add_argument("model", type=Path, help="the ONNX model, or the folder of a run")
    add_pair(parser)
    add_custom_ops(parser)
    _json(parser)
    return parser


def verify_parser() -> Parser:
    """Return the parser of `precision-bisect verify`."""
    parser = Parser(
        "verify",
        description="Build the engine of a finished run's plan once, look into it, and say for "
        "each kept layer whether the engine computes it at the precision that was asked for. "
        "Where the build fails, every layer in FP32 is built to see what is at fault. The run "
        "folder keeps what was found: verify.json. Flags that are left out are as the run had "
        "them. TensorRT-RTX builds and looks on a machine without a GPU, too.",
        epilog="exit codes: 0 every kept layer is seen to be honoured; 1 one is demoted, or the "
        "builder refuses the plan and not every layer in FP32; 2 wrong usage or bad input; 4 the "
        "build fails, and that of every layer in FP32, too, or it ends at a limit or by a crash, "
        "which proves nothing against the plan; 5 the engine does not show of every "
        "kept layer in which type it computes, and none is seen to be demoted",
    )
    _model_and_plan(parser)
    add_verbose(parser, "list every kept layer with its evidence")
    parser.add_argument(
        "--backend",
        choices=("auto", "tensorrt", "tensorrt-rtx", "onnxruntime"),
        help="what builds the engine; auto takes the first that is installed (that of the run; "
        "auto after a forecast)",
    )
    _json(parser)
    engine = parser.add_argument_group("engine")
    add_engine_arguments(engine, timeout="30m")
    as_in_run(parser)
    engine.add_argument(
        "--build-memory",
        metavar="SIZE",
        help="kill a build whose process takes more main memory: 8G, 512M (three quarters of "
        "what is free)",
    )
    return parser


def export_parser() -> Parser:
    """Return the parser of `precision-bisect export`."""
    parser = Parser(
        "export",
        description="Write the files for deployment again from a finished run: model.mixed.onnx, "
        "layerPrecisions.txt, trtexec.sh, autocast-exclude.txt, polygraphy_constraints.py. What "
        "judges the answer stays as the run wrote it.",
    )
    _model_and_plan(parser)
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="where to write (the run's folder; for another point of the curve one in it)",
    )
    add_export_point(parser)
    _json(parser)
    add_engine_arguments(parser.add_argument_group("engine"))
    return parser


def doctor_parser() -> Parser:
    """Return the parser of `precision-bisect doctor`."""
    parser = Parser(
        "doctor",
        description="Say what is installed, which backends can run here and why others cannot, "
        "and what to install for more. With --bundle write an archive to send to others: that, "
        "and of a run its result, plan, logs and what verify has left; no model, no weights, no "
        "inputs, no outputs.",
    )
    parser.add_argument(
        "run",
        type=folder,
        metavar="RUN",
        nargs="?",
        help="a run folder, or the model, for --bundle",
    )
    parser.add_argument(
        "--bundle",
        type=folder,
        metavar="FILE",
        nargs="?",
        const=DEFAULT_BUNDLE,
        help=f"write the archive ({DEFAULT_BUNDLE})",
    )
    _json(parser)
    return parser


def status_parser() -> Parser:
    """Return the parser of `precision-bisect status`."""
    parser = Parser(
        "status",
        description="Say what a run is doing, from another terminal: how far it is, the best plan "
        "so far, the last trials, or how it ended, and whether its process is still there; of a "
        "batch's folder, how its jobs stand. Only reads, and never disturbs the run.",
        epilog="exit codes: 0 the folder is a run's; 2 wrong usage, or it is none",
    )
    parser.add_run("the run folder, or the model: its last run")
    _json(parser)
    return parser


def report_parser() -> Parser:
    """Return the parser of `precision-bisect report`."""
    parser = Parser(
        "report",
        description="Write report.html from a run folder: one page that opens in any browser and "
        "needs no network. A run that goes on is shown as far as it is, and never disturbed.",
        epilog="exit codes: 0 written; 2 wrong usage, the folder is no run's, or it cannot be "
        "written",
    )
    parser.add_run("the run folder, or the model: its last run")
    parser.add_argument(
        "--out", type=folder, metavar="FILE", help="where to write (RUN/report.html)"
    )
    _json(parser)
    return parser


def show_parser() -> Parser:
    """Return the parser of `precision-bisect show`."""
    parser = Parser(
        "show",
        description="Print the final screen of a run again, also of one that was cut off, or how "
        "the jobs of a batch stand.",
        epilog="exit codes: 0 shown; 2 wrong usage, or there is no result",
    )
    parser.add_run("the run folder, its result.json, or the model: its last run")
    add_explain_search(parser)
    _json(parser, "print result.json")
    return parser


def compare_parser() -> Parser:
    """Return the parser of `precision-bisect compare`."""
    parser = Parser(
        "compare",
        description="Say what changed between two runs: what they depend on, the kept layers, the "
        "error, the speed, the causes. Layers are compared by their names.",
        epilog="exit codes: 0 the same kept layers; 1 others; 2 wrong usage, or no result",
    )
    for name, what in (("before", "the run to compare with"), ("after", "the other run")):
        parser.add_argument(
            name,
            type=folder,
            metavar=name.upper(),
            help=f"{what}: its folder, result.json, or model",
        )
    _json(parser)
    return parser


def _json(parser: argparse.ArgumentParser, what: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def _model_and_plan(
    parser: argparse.ArgumentParser,
    model: str = "the ONNX model that was searched, or the run folder alone",
) -> None:
    parser.add_argument("model", type=Path, help=model)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="PATH",
        help="result.json or the run folder that holds it (MODEL.precision-bisect)",
    )
