"""What watches a run and writes it down in the run folder."""

import os
import shlex
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from precision_bisect.machine.user_scripts import first_line
from precision_bisect.runs.monitoring.event_log import EventLog
from precision_bisect.runs.monitoring.events import Event, Observer, Warned, tell_all
from precision_bisect.runs.monitoring.live_status import LiveStatus
from precision_bisect.runs.results.curve_of_result import KeptError
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.run_status import Process
from precision_bisect.runs.runfolder import EVENTS, STATUS


class Attended:
    """An observer that keeps the log and the live status of a run, and passes events on.

    Both files begin with the first `RunStarted`, when the folder is known to be the run's own.
    What cannot be written is one warning for each file. Used as a context manager it writes down
    the end, too: that of `conclude`, or the exception that ended the run.
    """

    def __init__(self, folder: Path, observer: Observer) -> None:
        process = Process(
            pid=os.getpid(),
            host=socket.gethostname(),
            version=version("precision-bisect"),
            command=shlex.join(began) if (began := command_line()) else None,
        )
        self._log = EventLog(folder / EVENTS, process)
        self._live = LiveStatus(folder / STATUS, process)
        self._observer = observer
        self._tell = tell_all(self._log, self._live, observer)
        self._warned: set[str] = set()
        self._ending: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._ending = {"state": "failed", "status": None, "message": first_line(error)}
        ending = self._ending
        self._log.close(None if ending is None else {"event": "run_ended", **ending})
        self._live.close(ending)
        self._warn()

    def __call__(self, event: Event, /) -> None:
        """Take one event."""
        self._tell(event)
        self._warn()

    def conclude(self, result: Result) -> None:
        """Note how the run ended."""
        best = KeptError(kept=len(result.kept), error=result.error)
        self._ending = {
            "state": "finished",
            "status": result.status,
            "message": result.message,
            "best": best if result.rungs else None,
            "unresolved": dict(result.unresolved),
            "wall_s": result.wall_s,
        }

    def _warn(self) -> None:
        """Say once of each file that it cannot be written."""
        for name, trouble in ((EVENTS, self._log.trouble), (STATUS, self._live.trouble)):
            if trouble is not None and name not in self._warned:
                self._warned.add(name)
                message = f"cannot write {name}: {trouble.strerror}; the search goes on"
                self._observer(Warned(message=message))


def command_line() -> list[str]:
    """Return the words of the command line; none where the run was begun from Python."""
    program = Path(sys.argv[0] if sys.argv else "")
    ours = program.name == "precision-bisect" or program.parts[-2:] == (
        "precision_bisect",
        "__main__.py",
    )
    return ["precision-bisect", *sys.argv[1:]] if ours else []
