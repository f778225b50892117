"""The main job: a run, the signals it may meet, what is told of it, and what follows from it."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.commandline.internal_errors import complain, internal_errors
from precision_bisect.errors import ExitCode, PrecisionBisectError
from precision_bisect.machine.interrupts import command_begun
from precision_bisect.machine.stopping import let_go, turn_away
from precision_bisect.options import Options
from precision_bisect.runs.monitoring.on_finish import call, check_command
from precision_bisect.runs.results.endings import CUT_SHORT, Status
from precision_bisect.runs.runfolder import RESULT

if TYPE_CHECKING:
    from precision_bisect.runs.comparing.changes import Gate
    from precision_bisect.runs.results.result import Result

from os import _exit  # a script that is being run has another one
from types import FrameType
from typing import Any

from precision_bisect.machine.answered_signals import AnswersSignals, Interrupted
from precision_bisect.machine.workdir import remove_all
from precision_bisect.runs.monitoring.events import Event, RunStarted

TOO_EARLY = "interrupted before the search began; nothing was written"
TOO_LATE = "interrupted while the result was being written; --resume writes it again"


class Interruptible(AnswersSignals):
    """Ends a run on Ctrl-C and on SIGTERM; passes events on to the report.

    Until the search begins nothing is written, so the process ends at once: libraries that load
    meanwhile may swallow an exception. From then on the signal is a KeyboardInterrupt, which the
    run answers with the best plan so far; a second one ends it.

    Where the terminal is gone (SIGHUP: a closed laptop) or cannot be written to, the run goes on
    without it: what it finds is in the run folder.
    """

    def __init__(self, report: Any) -> None:
        super().__init__()
        self._report = report
        self._searching = False

    def __call__(self, event: Event) -> None:
        self._searching = self._searching or isinstance(event, RunStarted)
        try:
            self._report(event)
        except OSError:
            let_go()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """End the search with its best plan; before it, end the process."""
        limit = self.cpu_limit(number)
        if self._searching:
            if limit:
                complain(f"interrupted by {limit}")
            raise Interrupted(TOO_LATE)
        self._report.__exit__()
        remove_all()
        complain(f"{TOO_EARLY}: {limit} is reached" if limit else TOO_EARLY)
        _exit(ExitCode.INTERRUPTED)


def search(parsed: Namespace, options: Options) -> int:
    """Run the main job, or a part of it, as the options say; return the exit code."""
    finished = parsed.on_finish
    if finished is not None:
        check_command(finished)
    from precision_bisect.commandline.ci_reports import (
        check_junit,
        commands_stopped,
        report_to_services,
    )
    from precision_bisect.plugins import REPORTS, leave_page, load
    from precision_bisect.runs.comparing.changes import read_gate

    gate = read_gate(options, parsed.max_kept, parsed.baseline)
    if parsed.junit is not None:
        check_junit(parsed.junit, options.folder)
    if gate.remark:
        complain(f"warning: {gate.remark}")
    tell_services = partial(
        report_to_services, options, junit_file=parsed.junit, github=parsed.github
    )

    telling = {"explain": parsed.explain_search, "quiet": parsed.quiet}
    report = load(REPORTS, "terminal")(sys.stdout, sys.stderr, **telling)
    with Interruptible(report) as watched, ExitStack() as last, _errors_told(tell_services):
        with commands_stopped(github=parsed.github), report, internal_errors(options.folder):
            from precision_bisect.api import run

            result = run(options, watched, begun=command_begun())
            if finished is not None:
                last.callback(_call, finished, options.folder / RESULT)
            if result.layers_total and (trouble := leave_page(options.folder)):
                complain(f"warning: {trouble}")
            if not parsed.json:
                report.conclude(result, options.model)
        if parsed.json:
            _print(result.to_text())
    code, objections = _held_against(gate, result)
    for objection in objections:
        complain(objection)
    remarks = [*objections, gate.remark] if gate.remark else objections
    tell_services(result, code, remarks)
    if code == ExitCode.OK:
        from precision_bisect.runs.results.chosen_point import kept_at

        curve = (result.curve, result.culprits)
        kept_at(options.export_point, result.kept, result.deploy, curve)
    return code


def _print(text: str) -> None:
    """Print the result; a reader that has gone changes nothing of the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        turn_away(sys.stdout)


@contextmanager
def _errors_told(tell_services: Callable[..., None]) -> Iterator[None]:
    """Have services know of an error that ends a run, too."""
    try:
        yield
    except PrecisionBisectError as error:
        tell_services(None, error.exit_code, [error.one_line()])
        raise


def _held_against(gate: "Gate", result: "Result") -> tuple[ExitCode, Sequence[str]]:
    """Return the exit code of a run, once its answer was held against what may be kept, and why.

    A curve that was asked for is all that there is to be.
    """
    if result.cut_short:
        return result.exit_code, (f"the answer is written; {CUT_SHORT}",)
    if result.curve and not result.rungs and result.status is Status.STOPPED:
        return ExitCode.OK, ()
    if result.exit_code is not ExitCode.OK:
        return result.exit_code, ()
    objections = list(gate.objections(result))
    return ExitCode.NO_PLAN if objections else ExitCode.OK, objections


def _call(command: Sequence[str], result: Path) -> None:
    if trouble := call(command, result):
        complain(f"warning: {trouble}")
