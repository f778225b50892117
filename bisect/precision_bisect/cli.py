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
from typing import Any

from precision_bisect.arguments import layers_parser, run_parser, to_options
from precision_bisect.errors import ExitCode, PrecisionBisectError, printable
from precision_bisect.events import Event, RunStarted

_TOO_EARLY = "interrupted before the search began; nothing was written"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every known error is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except OSError as error:
        return _output_failed(error)
    except PrecisionBisectError as error:
        _complain(error.one_line())
        return error.exit_code
    except KeyboardInterrupt:
        _complain(_TOO_EARLY)
        return ExitCode.INTERRUPTED
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["layers"]:
        return _layers(arguments[1:])
    return _run(arguments[1:] if arguments[:1] == ["run"] else arguments)


def _run(arguments: Sequence[str]) -> int:
    parsed = run_parser().parse_args(arguments)
    options = to_options(parsed)
    from precision_bisect.plugins import REPORTS, load

    report = load(REPORTS, "terminal")(sys.stdout, sys.stderr)
    with _Interrupts(report) as watched, report:
        from precision_bisect.run import run

        result = run(options, watched)
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


class _Interrupts:
    """Ends a run on Ctrl-C and on SIGTERM; passes events on to the report.

    Until the search begins nothing is written, so the process ends at once: libraries that load
    meanwhile may swallow an exception. From then on the signal is a KeyboardInterrupt, which the
    run answers with the best plan so far.
    """

    def __init__(self, report: Any) -> None:
        self._report = report
        self._searching = False
        self._former: dict[int, Any] = {}

    def __call__(self, event: Event) -> None:
        self._searching = self._searching or isinstance(event, RunStarted)
        self._report(event)

    def __enter__(self) -> "_Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._searching:
            raise KeyboardInterrupt
        self._report.__exit__()
        _complain(_TOO_EARLY)
        sys.stderr.flush()
        os._exit(ExitCode.INTERRUPTED)


def _open_missing_streams() -> None:
    """Give standard streams that the caller closed a place to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _output_failed(error: OSError) -> int:
    """End quietly where a reader such as `head` has gone, else say that output was lost."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return ExitCode.OK
    _complain(f"cannot write the output: {error.strerror}; what was found is in the run folder")
    return ExitCode.USAGE


def _complain(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"precision-bisect: {printable(line)}\n")
