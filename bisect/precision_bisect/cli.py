"""The command line: arguments to options, results to exit codes.

`precision-bisect MODEL` runs the main job; other jobs are subcommands. Only argparse and the
standard library are imported before a command really starts.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from precision_bisect.arguments.commands import (
    doctor_parser,
    export_parser,
    layers_parser,
    verify_parser,
)
from precision_bisect.arguments.engine import to_engine_settings
from precision_bisect.arguments.run import run_parser, to_options
from precision_bisect.errors import ExitCode, PrecisionBisectError, printable
from precision_bisect.events import Event, RunStarted
from precision_bisect.workdir import remove_all
from precision_bisect.workers import still_working

_TOO_EARLY = "interrupted before the search began; nothing was written"
_TOO_LATE = "interrupted while the result was being written; --resume writes it again"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every known error is one line on stderr.

    Where a trial that was given up still goes on, the process ends with that code at once.
    """
    _open_missing_streams()
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
        _complain(error.one_line())
        return error.exit_code
    except KeyboardInterrupt as error:
        searched = _COMMANDS.get(arguments[0] if arguments else "", _run) is _run
        _complain(str(error) or (_TOO_EARLY if searched else "interrupted"))
        return ExitCode.INTERRUPTED
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    command = _COMMANDS.get(arguments[0]) if arguments else None
    return command(arguments[1:]) if command else _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    parsed = run_parser().parse_args(arguments)
    options = to_options(parsed)
    from precision_bisect.plugins import REPORTS, load

    report = load(REPORTS, "terminal")(sys.stdout, sys.stderr)
    with _Interrupts(report) as watched, report:
        from precision_bisect.run import run

        result = run(options, watched)
        if not parsed.json:
            report.conclude(result, options.model)
    if parsed.json:
        sys.stdout.write(result.to_text())
    return result.exit_code


def _layers(arguments: Sequence[str]) -> int:
    parsed = layers_parser().parse_args(arguments)
    from precision_bisect.listing import as_json, as_text
    from precision_bisect.model.load import load_model
    from precision_bisect.pinning import pin_formless
    from precision_bisect.precisions import Pair

    pair = Pair(low=parsed.low, high=parsed.high)
    table = pin_formless(load_model(parsed.model), pair).table
    sys.stdout.write(as_json(table) if parsed.json else as_text(table))
    return ExitCode.OK


def _verify(arguments: Sequence[str]) -> int:
    parsed = verify_parser().parse_args(arguments)
    settings = to_engine_settings(parsed)
    from precision_bisect.verify import verify

    found = verify(parsed.model, parsed.plan, parsed.backend, settings)
    sys.stdout.write(found.to_json() if parsed.json else found.to_text())
    return found.exit_code


def _export(arguments: Sequence[str]) -> int:
    parsed = export_parser().parse_args(arguments)
    settings = to_engine_settings(parsed)
    from precision_bisect.export_command import export

    sys.stdout.write(export(parsed.model, parsed.plan, parsed.out, settings))
    return ExitCode.OK


def _doctor(arguments: Sequence[str]) -> int:
    parsed = doctor_parser().parse_args(arguments)
    from precision_bisect.doctor import examine

    found = examine()
    sys.stdout.write(found.to_json() if parsed.json else found.to_text())
    return ExitCode.OK


_COMMANDS = {
    "doctor": _doctor,
    "export": _export,
    "layers": _layers,
    "run": _run,
    "verify": _verify,
}


class _Interrupts:
    """Ends a run on Ctrl-C and on SIGTERM; passes events on to the report.

    Until the search begins nothing is written, so the process ends at once: libraries that load
    meanwhile may swallow an exception. From then on the signal is a KeyboardInterrupt, which the
    run answers with the best plan so far; a second one ends it.
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
            raise KeyboardInterrupt(_TOO_LATE)
        self._report.__exit__()
        remove_all()
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


def _leave(code: int) -> NoReturn:
    """End the process now: a build that was given up after Ctrl-C cannot be stopped, only left."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _complain(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"precision-bisect: {printable(line)}\n")
