"""A run that signals and a lost terminal may meet."""

import os
import signal
import stat
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from precision_bisect.errors import ExitCode
from precision_bisect.events import Event, RunStarted
from precision_bisect.workdir import remove_all

TOO_EARLY = "interrupted before the search began; nothing was written"
TOO_LATE = "interrupted while the result was being written; --resume writes it again"


class Watched:
    """Ends a run on Ctrl-C and on SIGTERM; passes events on to the report.

    Until the search begins nothing is written, so the process ends at once: libraries that load
    meanwhile may swallow an exception. From then on the signal is a KeyboardInterrupt, which the
    run answers with the best plan so far; a second one ends it.

    Where the terminal is gone (SIGHUP: a closed laptop) or cannot be written to, the run goes on
    without it: what it finds is in the run folder.
    """

    def __init__(self, report: Any) -> None:
        self._report = report
        self._searching = False
        self._former: dict[int, Any] = {}

    def __call__(self, event: Event) -> None:
        self._searching = self._searching or isinstance(event, RunStarted)
        try:
            self._report(event)
        except OSError:
            let_go()

    def __enter__(self) -> Self:
        for number, handler in _handled(self).items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Answer Ctrl-C or SIGTERM."""
        if self._searching:
            raise KeyboardInterrupt(TOO_LATE)
        self._report.__exit__()
        remove_all()
        with suppress(OSError):
            sys.stderr.write(f"precision-bisect: {TOO_EARLY}\n")
            sys.stderr.flush()
        os._exit(ExitCode.INTERRUPTED)

    def hang_up(self, number: int, frame: FrameType | None) -> None:
        """Answer SIGHUP."""
        let_go()


def _handled(watched: Watched) -> dict[int, Any]:
    handled: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM), watched.interrupt)
    if hasattr(signal, "SIGHUP"):
        handled[signal.SIGHUP] = watched.hang_up
    return handled


def let_go() -> None:
    """Turn the standard streams that are terminals away from them: they are gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # By number: a script of the user's may have taken the place of sys.stdout for the moment.
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)
