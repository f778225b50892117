"""The command line: arguments to options, results to exit codes.

`precision-bisect MODEL` runs the main job; other jobs are subcommands. Only argparse and the
standard library are imported before a command really starts.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from precision_bisect.arguments import layers_parser, run_parser, to_options
from precision_bisect.errors import ExitCode, PrecisionBisectError, printable


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every known error is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except PrecisionBisectError as error:
        _complain(error.one_line())
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted before the search began")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK


def _dispatch(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["layers"]:
        return _layers(arguments[1:])
    return _run(arguments[1:] if arguments[:1] == ["run"] else arguments)


def _run(arguments: Sequence[str]) -> int:
    parsed = run_parser().parse_args(arguments)
    options = to_options(parsed)
    from precision_bisect.plugins import REPORTS, load

    report = load(REPORTS, "terminal")(sys.stdout, sys.stderr)
    with _terminated_as_interrupt(), report:
        from precision_bisect.run import run

        result = run(options, report)
    if parsed.json:
        sys.stdout.write(result.to_text())
    else:
        report.conclude(result, options.model)
    return result.exit_code


def _layers(arguments: Sequence[str]) -> int:
    parsed = layers_parser().parse_args(arguments)
    from precision_bisect.listing import as_json, as_text
    from precision_bisect.model.load import load_model

    table = load_model(Path(parsed.model)).table
    sys.stdout.write(as_json(table) if parsed.json else as_text(table))
    return ExitCode.OK


class _terminated_as_interrupt:
    """Makes SIGTERM end a run as Ctrl-C does, with the best plan so far written."""

    def __enter__(self) -> None:
        self._former = signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._former)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt


def _complain(line: str) -> None:
    sys.stderr.write(f"precision-bisect: {printable(line)}\n")
