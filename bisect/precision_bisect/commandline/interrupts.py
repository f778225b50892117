"""A run that signals and a lost terminal may meet."""

import sys
from contextlib import suppress
from os import _exit  # a script that is being run has another one
from types import FrameType
from typing import Any

from precision_bisect.errors import ExitCode
from precision_bisect.machine.signals import AnswersSignals, Interrupted, let_go
from precision_bisect.machine.workdir import remove_all
from precision_bisect.monitoring.events import Event, RunStarted

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
        if self._searching:
            raise Interrupted(TOO_LATE)
        self._report.__exit__()
        remove_all()
        with suppress(OSError):
            sys.stderr.write(f"precision-bisect: {TOO_EARLY}\n")
            sys.stderr.flush()
        _exit(ExitCode.INTERRUPTED)
