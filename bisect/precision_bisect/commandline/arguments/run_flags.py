"""The arguments of the main job."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

from precision_bisect.commandline.arguments.command_flags import TOLD_OF_RUNS, Telling
from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.commandline.arguments.toml_flags import NO_CONFIG, configured
from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import check, flags_of, given

_COMMANDS = """\
commands:
  precision-bisect MODEL   find the layers that must stay in FP32
  ... curve MODEL          say what breaks FP16, and what an error takes
  ... layers MODEL         list the candidates, and why every other node is none
  ... explain MODEL        say why layers need the precision, and what to change
  ... verify MODEL         build the found plan: does the engine honour it?
  ... target MODEL         judge it where there is only trtexec and a shell
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
  1    no plan is within the limits, it is no precision problem, or more is kept than
       --max-kept or --baseline allow
  2    wrong usage or bad input
  3    ended early: budget or disk spent, or crash after crash; the best plan so far is
       written
  4    not even FP32 builds, or runs
  6    model.mixed.onnx must not be used: in a fresh process it does not open, or computes
       something else; the layers stand
  70   an internal error
  130  interrupted; the best plan so far is written

{_COMMANDS}"""
_EXAMPLE = """\
example:
  precision-bisect model.onnx --tol 1e-2 --inputs inputs/
"""
_SHORT_EPILOG = f"""\
{_EXAMPLE}
commands, each with a --help:
  curve MODEL     what breaks FP16        verify MODEL    does the engine obey?
  layers MODEL    what is decided on      target MODEL    judge by trtexec alone
  explain MODEL   why, and what helps     export MODEL    the files once more
  show MODEL      the last screen again   report MODEL    the HTML page again
  status MODEL    what a run is doing     compare A B     two runs
  batch JOBS      many models             doctor          what works here

--help-all shows every flag and the exit codes.
"""
USAGE = f"""\
usage: precision-bisect MODEL [--tol T] [--inputs PATH] [flags]
       precision-bisect COMMAND ...

Which layers of an ONNX model must stay FP32 when the rest runs in FP16?

{_EXAMPLE}
{_COMMANDS}precision-bisect --help shows the everyday flags, --help-all the rest.
"""
"""What is said where nothing is asked."""
_DRAWN = tuple(
    field.name
    for field in fields(Options)
    if any(flag.group == "search" for flag in flags_of(field)) and field.name != "until"
)


def run_parser() -> Parser:
    parser = Parser(
        description="Find a minimal set of layers of an ONNX model that must stay FP32 when the "
        "rest\nruns in a lower precision, prove it, and explain it.",
        short_usage="precision-bisect MODEL [--tol T] [--inputs PATH] [flags]",
        short_epilog=_SHORT_EPILOG,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_needed("model", "the FP32 ONNX model, or a run folder to --resume")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('precision-bisect')}"
    )
    parser.add_flags(Options, "inputs", "images", "verdict", "search", "speed", "workers")
    parser.add_flags(EngineSettings, "engine")
    parser.add_flags(Options, "output")
    parser.add_flags(Telling, *TOLD_OF_RUNS, "max_kept", "baseline", "config", spare=False)
    return parser


def from_config(parser: Parser, parsed: argparse.Namespace) -> Sequence[str]:
    """Return the arguments that a configuration file adds to those of a run; a folder has its own.

    Raises UsageError.
    """
    if not hasattr(parsed, "config"):
        return ()
    if os.path.isdir(parsed.model):  # noqa: PTH112 - never raises
        if parsed.config in (None, Path(NO_CONFIG)):
            return ()
        raise UsageError(f"{parsed.model} is a run, which has its flags", "leave --config out")
    # What is for a search alone is no error of `curve`.
    added = configured(run_parser(), parsed)
    return [word for word in added if word.partition("=")[0] in parser._option_string_actions]


def curve_parser() -> Parser:
    """Return the parser of `precision-bisect curve`: the main job's, but for what is an answer."""
    parser = Parser(
        "curve",
        description="Draw the curve alone: the error by the number of kept layers, and the layers "
        "that break the low type, in the time of the ranking and about 20 evaluations. A search "
        "goes on from there with --resume.",
        short_usage="precision-bisect curve MODEL [--tol T] [--inputs PATH] [flags]",
        epilog="exit codes: 0 drawn, or nothing needs to be kept; 1 it is no precision problem; "
        "2 wrong usage or bad input; 3 ended early; 4 not even FP32 builds; 70 internal error; "
        "130 interrupted",
    )
    parser.add_needed("model", "the FP32 ONNX model; of the folder of a run, what was drawn")
    parser.add_flags(Options, "inputs", "images", "verdict", *_DRAWN, "workers")
    parser.add_flags(EngineSettings, "engine")
    parser.add_flags(Options, "output")
    parser.add_flags(Telling, *TOLD_OF_RUNS, "config", spare=False)
    parser.set_defaults(until="curve", max_kept=None, baseline=None)
    return parser


def to_options(parsed: argparse.Namespace) -> Options:
    """Return the options that the parsed arguments ask for. Raises UsageError."""
    check(Telling(**given(parsed, Telling)))
    options = given(parsed, Options)
    if "ladder" in options and not {"low", "high"}.isdisjoint(options):
        raise UsageError("--ladder excludes --low and --high", "it names all types itself")
    engine = given(parsed, EngineSettings)
    if options.get("resume") and os.path.isdir(parsed.model):  # noqa: PTH112 - never raises
        # Imported here: it reads models.
        from precision_bisect.pipeline.reopening import options_to_go_on

        return options_to_go_on(parsed.model, options, engine)
    return Options(model=parsed.model, **options, engine=EngineSettings(**engine))
