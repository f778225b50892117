"""The command line: arguments to options, results to exit codes.

`precision-bisect MODEL` runs the main job; other jobs are subcommands. Only argparse and the
standard library are imported before a command really starts.
"""

import os
import shlex
import sys
from argparse import Namespace
from atexit import _run_exitfuncs
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from os import _exit  # a script that still runs has another one
from typing import NoReturn

from precision_bisect.commandline.arguments.parser import Parser, close_matches
from precision_bisect.commandline.arguments.run_flags import (
    USAGE,
    from_config,
    run_parser,
    to_options,
)
from precision_bisect.commandline.commands import COMMANDS
from precision_bisect.commandline.internal_errors import complain, internal_errors, tell
from precision_bisect.commandline.job import TOO_EARLY, search
from precision_bisect.errors import ExitCode, PrecisionBisectError, UsageError
from precision_bisect.machine.forked import copies_allowed
from precision_bisect.machine.interrupts import begin_command
from precision_bisect.machine.stopping import turn_away
from precision_bisect.search.workers import still_working


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every known error is one line on stderr.

    Where a trial that was given up still goes on, and after Ctrl-C, the process ends with that
    code by what is registered to run at exit alone: Python is not taken down, since a native
    library may be in the midst of something.
    """
    if "_ARGCOMPLETE" in os.environ:
        from precision_bisect.commandline.completion import answer

        answer()
    if argv is not None:
        begin_command()
    _open_missing_streams()
    _let_print_all()
    # Only the command line's own process has no threads but ours.
    with copies_allowed() if argv is None else nullcontext():
        code = _main(list(sys.argv[1:] if argv is None else argv))
    if still_working() or (argv is None and code == ExitCode.INTERRUPTED):
        _leave(code)
    return code


def _main(arguments: Sequence[str]) -> int:
    try:
        with internal_errors():
            code = _dispatch(arguments)
            sys.stdout.flush()
    except OSError as error:
        return _output_failed(error)
    except PrecisionBisectError as error:
        complain(error.one_line())
        for line in error.further.splitlines():
            tell(line)
        return error.exit_code
    except KeyboardInterrupt as error:
        searched = not arguments or arguments[0] not in COMMANDS
        complain(str(error) or (TOO_EARLY if searched else "interrupted"))
        return ExitCode.INTERRUPTED
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write(USAGE)
        return ExitCode.USAGE
    first = arguments[0]
    if first in COMMANDS:
        parser, command = COMMANDS[first]
        return command(_read(parser(), arguments[1:]))
    if first == "run":
        return _run(arguments[1:])
    if first.isalpha() and not os.path.lexists(first):
        _refuse_command(first, arguments[1:])
    return _run(arguments)


def _read(parser: Parser, arguments: Sequence[str]) -> Namespace:
    """Return the arguments, with what a configuration file adds, which is said."""
    parsed = parser.read(arguments)
    added = from_config(parser, parsed)
    if added:
        tell(f"From the configuration file: {shlex.join(added)}")
    return parser.read([*added, *arguments]) if added else parsed


def _refuse_command(word: str, rest: Sequence[str]) -> None:
    """Raise UsageError for a word that seems to be a command, by its letters or what follows."""
    near = close_matches(word, (*COMMANDS, "--help", "--version"))
    if near:
        raise UsageError(f"no command {word!r}", f"did you mean {near[0]}?")
    models = [argument for argument in rest if argument.endswith(".onnx")]
    models += [argument for argument in rest[:1] if os.path.isfile(argument)]  # noqa: PTH113 - never raises
    if models:
        raise UsageError(
            f"no command {word!r}",
            f"the search needs no word: precision-bisect {shlex.quote(models[0])}",
        )


def _run(arguments: Sequence[str]) -> int:
    parsed = _read(run_parser(), arguments)
    return search(parsed, to_options(parsed))


def _open_missing_streams() -> None:
    """Give standard streams that the caller closed a place, for processes that are begun, too."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the number that was closed, which else the next file would get.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode))


def _let_print_all() -> None:
    """Have standard output escape what its encoding lacks: paths may hold any bytes."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _output_failed(error: OSError) -> int:
    """End quietly where a reader such as `head` has gone, else say that output was lost."""
    turn_away(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return ExitCode.OK
    complain(f"cannot write the output: {error.strerror}; what was found is in the run folder")
    return ExitCode.USAGE


def _leave(code: int) -> NoReturn:
    """End the process without waiting: a build that was given up can only be left."""
    _run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _exit(code)
