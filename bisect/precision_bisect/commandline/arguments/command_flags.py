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
        "print the whole last screen, and before it each trial: why this plan, what came of it",
        short="-v",
        brief="print all that was found, each trial too",
    )
    quiet: bool = _output(
        False,
        "print warnings and the answer alone",
        short="-q",
        brief="print warnings and the answer alone",
    )
    json: bool = _output(
        False,
        "print JSON instead of text, of an answer its result.json",
        brief="print JSON instead of text",
    )
    on_finish: Sequence[str] | None = _output(
        None,
        "call this command, without a shell, however the run ended, with the path of its "
        "result.json",
        metavar="CMD",
        read=command_words,
    )
    max_kept: int | None = _output(
        None, "exit with 1 where more than N layers are kept", metavar="N", least=0
    )
    baseline: Path | None = _output(
        None,
        "exit with 1 where a layer is kept that this result.json or run folder does not keep;"
        " warn if there is none yet",
        metavar="RESULT",
    )
    junit: Path | None = _output(None, "write how the run ended as JUnit's XML", metavar="FILE")
    github: bool = _output(
        False, "tell GitHub Actions how it ended: annotations, the step's summary"
    )
    config: Path | None = _output(
        None,
        f"flags from this TOML file, where the command line leaves them open ({CONFIG}, or "
        f"[tool.precision-bisect] of {PYPROJECT}, in this folder; {NO_CONFIG}: no file)",
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
        description="Build the engine of a finished run's plan once, and say for each kept layer "
        "whether the engine computes it in the high type. Where the build fails, every layer in "
        "FP32 is built to see what is at fault. Flags that are left out are as the run had them. "
        "TensorRT-RTX needs no GPU for it.",
        short_usage="precision-bisect verify MODEL [flags]",
        everyday=(
            *("plan", "verbose", "backend", "typing", "compute_capability", "plugins"),
            *("build_timeout_s", "build_memory"),
        ),
        epilog="exit codes: 0 every kept layer is seen to be honoured; 1 one is demoted, or the "
        "plan does not build, while every layer in FP32 does; 2 wrong usage or bad input; 4 not "
        "even FP32 builds, or the build ends at a limit or by a crash; 5 some layers are not "
        "observable, none is demoted",
    )
    _model_and_plan(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="list every kept layer with its evidence"
    )
    parser.add_argument(
        "--backend",
        choices=("auto", *(name for name in installed(BACKENDS) if name != "emulated")),
        help="what builds the engine (that of the run; after a forecast auto, the first that is "
        "installed)",
    )
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(EngineSettings, "engine")
    parser.add_argument(
        "--build-memory",
        type=mebibytes,
        metavar="SIZE",
        help="kill a build that takes more main memory: 8G, 512M (three quarters of what is free)",
    )
    return parser


def export_parser() -> Parser:
    parser = Parser(
        "export",
        description="Write the files for deployment of a finished run again. What judges the "
        "answer stays as the run wrote it.",
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
        help="where to write (the run's folder, or one in it for another point)",
    )
    parser.add_flags(Options, "export_point")
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(EngineSettings, "engine")
    return parser


def target_parser() -> Parser:
    parser = Parser(
        "target",
        description="Judge a finished run on a machine that has only trtexec and a shell. --write "
        "makes a folder of samples, judge.sh and plans: typed models for TensorRT 10 or 11, or "
        "with --typing weak names of layers for 8.4 to 10. judge.sh builds and runs them. "
        "--read judges what came back, and records it in target.json and the report. "
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
        "--check", metavar="FILE.py:FUNCTION", help="the script that judged the run, where one did"
    )
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(EngineSettings, "engine")
    return parser


def doctor_parser() -> Parser:
    parser = Parser(
        "doctor",
        description="Say what is installed, which backends can run here, why others cannot, and "
        "what to install for more. --bundle writes that and a run's result, plan and logs into an "
        "archive to send to others; no model, inputs or outputs.",
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
        description="Say from another terminal how far a run is, its best plan and last trials, "
        "or how it ended; of a batch's folder, how its jobs stand. Never disturbs the run.",
        epilog="exit codes: 0 the folder is a run's; 2 wrong usage, or it is none",
    )
    parser.add_needed("run", "the run folder, or the model: its last run", "RUN", runs_here)
    parser.add_flags(Telling, "json", spare=False)
    return parser


def report_parser() -> Parser:
    parser = Parser(
        "report",
        description="Write report.html of a run, also of one that goes on, which it never "
        "disturbs.",
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
        description="Print the last screen of a run again, or how the jobs of a batch stand.",
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
        description="Say what changed between two runs: what they depend on, the layers, by name, "
        "the error, the speed, the causes; of two batches, in a line for each job.",
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
        description="Say without a search why layers need the high type, and what would help: the "
        "named ones, or those that hurt most when they alone run low. Of a run folder, and of a "
        "model alone that was searched, say what the last run found.",
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
        help="all layers, where values are largest, and how errors grow",
    )
    parser.add_flags(Telling, "json", spare=False)
    parser.add_flags(Options, "inputs", "images", "verdict", "low", "high", "target", "threads")
    parser.add_flags(EngineSettings, "ort_custom_ops")
    return parser


def to_explain_options(parsed: argparse.Namespace) -> Options:
    """Return the options of a run of the emulator over what was asked. Raises UsageError."""
    engine = EngineSettings(**given(parsed, EngineSettings))
    return Options(model=parsed.model, backend="emulated", engine=engine, **given(parsed, Options))
