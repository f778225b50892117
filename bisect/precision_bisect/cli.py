"""The command line: arguments to options, results to exit codes.

`precision-bisect MODEL` runs the main job; other jobs are subcommands. Only argparse and the
standard library are imported before a command really starts.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from precision_bisect.arguments.run import run_parser, to_options
from precision_bisect.commands import COMMANDS
from precision_bisect.errors import ExitCode, PrecisionBisectError
from precision_bisect.runfolder import RESULT
from precision_bisect.saying import complain
from precision_bisect.telling.on_finish import call, words
from precision_bisect.watched import TOO_EARLY, Watched
from precision_bisect.workers import still_working

if TYPE_CHECKING:
    from precision_bisect.comparing.gate import Gate
    from precision_bisect.result import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every known error is one line on stderr.

    Where a trial that was given up still goes on, the process ends with that code at once.
    """
    if "_ARGCOMPLETE" in os.environ:
        from precision_bisect.completion import answer

        answer()
    _open_missing_streams()
    _let_print_all()
    code = _main(list(sys.argv[1:] if argv is None else argv))
    if still_working():
        _leave(code)
    return code


def _main(arguments: Sequence[str]) -> int:
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except OSError as error:
        return _output_failed(error)
    except PrecisionBisectError as error:
        complain(error.one_line())
        return error.exit_code
    except KeyboardInterrupt as error:
        searched = not arguments or arguments[0] not in COMMANDS
        complain(str(error) or (TOO_EARLY if searched else "interrupted"))
        return ExitCode.INTERRUPTED
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        parser, command = COMMANDS[first]
        return command(parser().read(arguments[1:]))
    return _run(arguments[1:] if first == "run" else arguments)


def _run(arguments: Sequence[str]) -> int:
    parsed = run_parser().parse_args(arguments)
    options = to_options(parsed)
    finished = None if parsed.on_finish is None else words(parsed.on_finish)
    from precision_bisect.comparing.gate import read_gate
    from precision_bisect.page import leave_page
    from precision_bisect.plugins import REPORTS, load

    gate = read_gate(options, parsed.max_kept, parsed.baseline)

    report = load(REPORTS, "terminal")(sys.stdout, sys.stderr)
    with Watched(report) as watched, ExitStack() as last:
        with report:
            from precision_bisect.run import run

            result = run(options, watched)
            if finished is not None:
                last.callback(_call, finished, options.folder / RESULT)
            if trouble := leave_page(options.folder):
                complain(f"warning: {trouble}")
            if not parsed.json:
                report.conclude(result, options.model)
        if parsed.json:
            sys.stdout.write(result.to_text())
            sys.stdout.flush()
    return _held_against(gate, result)


def _held_against(gate: "Gate", result: "Result") -> int:
    """Return the exit code of a run, once its answer was held against what may be kept."""
    if result.exit_code is not ExitCode.OK:
        return result.exit_code
    objections = list(gate.objections(result))
    for objection in objections:
        complain(objection)
    return ExitCode.NO_PLAN if objections else ExitCode.OK


def _call(command: Sequence[str], result: Path) -> None:
    if trouble := call(command, result):
        complain(f"warning: {trouble}")


def _open_missing_streams() -> None:
    """Give standard streams that the caller closed a place to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _let_print_all() -> None:
    """Have standard output escape what its encoding lacks: paths may hold any bytes."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _output_failed(error: OSError) -> int:
    """End quietly where a reader such as `head` has gone, else say that output was lost."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return ExitCode.OK
    complain(f"cannot write the output: {error.strerror}; what was found is in the run folder")
    return ExitCode.USAGE


def _leave(code: int) -> NoReturn:
    """End the process now: a build that was given up after Ctrl-C cannot be stopped, only left."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
