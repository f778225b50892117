"""The arguments of the commands beside the main job."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.commandline.arguments.toml_flags import CONFIG, NO_CONFIG, PYPROJECT
from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.plugins import BACKENDS, installed
from precision_bisect.runs.monitoring.on_finish import command_words
from precision_bisect.runs.runfolder import runs_here
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import flag, given
from precision_bisect.settings.reading import mebibytes, named_path

DEFAULT_BUNDLE = Path("precision-bisect-bundle.tar.gz")
WORST = 10
"""So many layers are explained where none is named."""
_output = partial(flag, "output")
TOLD_OF_RUNS = ("explain_search", "quiet", "json", "on_finish", "junit", "github")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What commands tell once they are done, and what an answer is held against."""

    explain_search: bool = _output(
        False,
        "print the last screen whole, not 25 lines of it, and before it each trial but the "
        "forecasts: why this plan, what was believed, what came of it",
        short="-v",
        brief="print all that was found, each trial too",
    )
    quiet: bool = _output(
        False,
        "print nothing of the progress, but warnings and the answer",
        short="-q",
        brief="print warnings and the answer alone",
    )
    json: bool = _output(
        False,
        "print JSON instead of text; of an answer, its result.json",
        brief="print JSON instead of text",
    )
    on_finish: Sequence[str] | None = _output(
        None,
        "call this command once the result is written, however the run ended, with the path of "
        "result.json as its last argument; quoted as for a shell, but no shell runs it",
        metavar="CMD",
        read=command_words,
    )
    max_kept: int | None = _output(
        None, "exit with 1 where more than N layers are kept, for CI", metavar="N", least=0
    )
    baseline: Path | None = _output(
        None,
        "exit with 1 where a layer is kept that this result.json, or the one in this run folder, "
        "does not keep, and name it, for CI; where there is none yet, warn",
        metavar="RESULT",
    )
    junit: Path | None = _output(
        None, "write how the run ended as JUnit's XML, for CI", metavar="FILE"
    )
    github: bool = _output(
        False, "tell GitHub Actions how it ended: annotations, and the step's summary"
    )
    config: Path | None = _output(
        None,
        "flags from this TOML file, its keys as batch's, where the command line leaves them open "
        f"({CONFIG}, or [tool.precision-bisect] of {PYPROJECT}, in this folder; {NO_CONFIG}: no "
        "file)",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        if self.quiet and self.explain_search:
            raise UsageError("-q and -v exclude each other", "choose one")


def layers_parser() -> Parser:
    parser = Parser(
        "layers",
        description="List the candidate layers, and every other node with the reason why a search "
        "leaves it alone.",
    )
    parser.add_needed("model", "the ONNX model, or the folder of a run")
    parser.add_flags(Options, "low", "high")
    parser.add_flags(EngineSettings, "ort_custom_ops")
    parser.add_flags(Telling, "json", spare=False)
    return parser


def verify_parser() -> Parser:
    parser = Parser(
        "verify",
        description="Build the engine of a finished run's plan once, look into it, and say for "
        "each kept layer whether the engine computes it at the precision that was asked for. "
        "Where the build fails, every layer in FP32 is built to see what is at fault. The run "
        "folder keeps what was found: verify.json. Flags that are left out are as the run had "
        "them. TensorRT-RTX builds and looks on a machine without a GPU, too.",
        short_usage="precision-bisect verify MODEL [flags]",
        everyday=(
            *("plan", "verbose", "backend", "typing", "compute_capability", "plugins"),
            *("build_timeout_s", "build_memory"),
        ),
        epilog="exit codes: 0 every kept layer is seen to be honoured; 1 one is demoted, or the "
        "builder refuses the plan and not every layer in FP32; 2 wrong usage or bad input; 4 the "
        "build fails, and that of every layer in FP32, too, or it ends at a limit or by a crash, "
        "which proves nothing against the plan; 5 the engine does not show of every "
        "kept layer in which type it computes, and none is seen to be demoted",
    )
    _model_and_plan(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="list every kept layer with its evidence"
    )
    parser.add_argument(
        "--backend",
        choices=("auto", *(name for name in installed(BACKENDS) if name != "emulated")),
        help="what builds the engine; auto takes the first that is installed (that of the run; "
        "auto after a forecast)",
    )
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(EngineSettings, "engine")
    parser.add_argument(
        "--build-memory",
        type=mebibytes,
        metavar="SIZE",
        help="kill a build whose process takes more main memory: 8G, 512M (three quarters of "
        "what is free)",
    )
    return parser


def export_parser() -> Parser:
    parser = Parser(
        "export",
        description="Write the files for deployment again from a finished run: model.mixed.onnx, "
        "layerPrecisions.txt, trtexec.sh, autocast-exclude.txt, polygraphy_constraints.py. What "
        "judges the answer stays as the run wrote it.",
        short_usage="precision-bisect export MODEL [flags]",
        everyday=("plan", "out", "export_point", "typing", "io_types"),
        epilog="exit codes: 0 written; 2 wrong usage, or there is no plan to write; 6 "
        "model.mixed.onnx must not be used: in a fresh process it does not open",
    )
    _model_and_plan(parser)
    parser.add_argument(
        "--out",
        type=named_path,
        metavar="DIR",
        help="where to write (the run's folder; for another point of the curve one in it)",
    )
    parser.add_flags(Options, "export_point")
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(EngineSettings, "engine")
    return parser


def target_parser() -> Parser:
    parser = Parser(
        "target",
        description="Judge a finished run on a machine that has only trtexec and a shell. --write "
        "makes a folder for it: the plans of the run as strongly typed models for TensorRT 10 or "
        "11, or with --typing weak as names of layers for 8.4 to 10 (JetPack 5 and 6), the stored "
        "samples, and judge.sh, which builds and runs them. --read judges what "
        "came back as the run judges, prints it, and records it in target.json and in the report. "
        "Engine flags that are left out are as the run had them.",
        short_usage="precision-bisect target RUN (--write DIR | --read DIR) [flags]",
        everyday=("write", "read", "check", "typing"),
        epilog="exit codes of --read: 0 the answer holds on every sample; 1 it does not, FP32 "
        "itself does not, or not all of it came back; 2 wrong usage, or no folder of this run",
    )
    parser.add_needed("run", "the run folder, or the model that was searched")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--write", type=named_path, metavar="DIR", help="make this folder, a new one")
    way.add_argument("--read", type=named_path, metavar="DIR", help="judge what came back in it")
    parser.add_argument(
        "--check",
        metavar="FILE.py:FUNCTION",
        help="the script that judged the run, where one did",
    )
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(EngineSettings, "engine")
    return parser


def doctor_parser() -> Parser:
    parser = Parser(
        "doctor",
        description="Say what is installed, which backends can run here and why others cannot, "
        "and what to install for more. With --bundle write an archive to send to others: that, "
        "and of a run its result, plan, logs and what verify has left; no model, no weights, no "
        "inputs, no outputs.",
    )
    parser.add_argument(
        "run",
        type=named_path,
        metavar="RUN",
        nargs="?",
        help="a run folder, or the model, for --bundle",
    )
    parser.add_argument(
        "--bundle",
        type=named_path,
        metavar="FILE",
        nargs="?",
        const=DEFAULT_BUNDLE,
        help=f"write the archive ({DEFAULT_BUNDLE})",
    )
    parser.add_flags(Telling, "json", spare=False)
    return parser


def status_parser() -> Parser:
    parser = Parser(
        "status",
        description="Say what a run is doing, from another terminal: how far it is, the best plan "
        "so far, the last trials, or how it ended, and whether its process is still there; of a "
        "batch's folder, how its jobs stand. Only reads, and never disturbs the run.",
        epilog="exit codes: 0 the folder is a run's; 2 wrong usage, or it is none",
    )
    parser.add_needed("run", "the run folder, or the model: its last run", "RUN", runs_here)
    parser.add_flags(Telling, "json", spare=False)
    return parser


def report_parser() -> Parser:
    parser = Parser(
        "report",
        description="Write report.html from a run folder: one page that opens in any browser and "
        "needs no network. A run that goes on is shown as far as it is, and never disturbed.",
        epilog="exit codes: 0 written; 2 wrong usage, the folder is no run's, or it cannot be "
        "written",
    )
    parser.add_needed("run", "the run folder, or the model: its last run", "RUN", runs_here)
    parser.add_argument(
        "--out", type=named_path, metavar="FILE", help="where to write (RUN/report.html)"
    )
    parser.add_flags(Telling, "json", spare=False)
    return parser


def show_parser() -> Parser:
    parser = Parser(
        "show",
        description="Print the final screen of a run again, also of one that was cut off, or how "
        "the jobs of a batch stand.",
        epilog="exit codes: 0 shown; 2 wrong usage, or there is no result",
    )
    parser.add_needed(
        "run", "the run folder, its result.json, or the model: its last run", "RUN", runs_here
    )
    parser.add_flags(Telling, "explain_search", "json", spare=False)
    return parser


def compare_parser() -> Parser:
    parser = Parser(
        "compare",
        description="Say what changed between two runs: what they depend on, the kept layers, the "
        "error, the speed, the causes. Layers are compared by their names. Of two batches, say it "
        "in a line for each job.",
        epilog="exit codes: 0 the same kept layers; 1 others; 2 wrong usage, or no result",
    )
    for name, what in (("before", "the run or batch to compare with"), ("after", "the other one")):
        parser.add_needed(name, f"{what}: its folder, result.json, or model", name.upper())
    parser.add_flags(Telling, "json", spare=False)
    return parser


def _model_and_plan(parser: Parser) -> None:
    parser.add_needed("model", "the ONNX model that was searched, or the run folder alone")
    parser.add_argument(
        "--plan",
        type=named_path,
        metavar="PATH",
        help="result.json or the run folder that holds it (MODEL.precision-bisect)",
    )


def explain_parser() -> Parser:
    parser = Parser(
        "explain",
        mixed=True,
        description="Say why layers need the high precision, and what to change so that they do "
        "not, without a search: the named layers, or those that hurt most when they alone run "
        "low. Computes in FP32 and asks the emulator. Of a run folder, and of a model alone that "
        "was searched, says what the last run found.",
        short_usage="precision-bisect explain MODEL [LAYER ...] [flags]",
        everyday=("layers", "worst", "verbose"),
        epilog="exit codes: 0 explained; 2 wrong usage or bad input; 70 internal error",
    )
    parser.add_needed("model", "the FP32 ONNX model, or the folder of a run")
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
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="all layers, with where values are largest and how errors grow",
    )
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(Options, "inputs", "images", "verdict", "low", "high", "target", "threads")
    parser.add_flags(EngineSettings, "ort_custom_ops")
    return parser


def to_explain_options(parsed: argparse.Namespace) -> Options:
    """Return the options of a run of the emulator over what was asked. Raises UsageError."""
    engine = EngineSettings(**given(parsed, EngineSettings))
    return Options(model=parsed.model, backend="emulated", engine=engine, **given(parsed, Options))
