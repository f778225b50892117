"""What watches a run and writes it down in the run folder."""

import os
import re
import shlex
import socket
import sys
import threading
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from precision_bisect.machine.plain_files import CAREFULLY, whole
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.runs import plain_json
from precision_bisect.runs.locking import now, owner_of
from precision_bisect.runs.monitoring.events import (
    Event,
    Observer,
    PhaseStarted,
    RunStarted,
    SamplesRead,
    TrialFinished,
    TrialsEnded,
    TrialStarted,
    Warned,
    tell_all,
)
from precision_bisect.runs.monitoring.run_progress import Progress
from precision_bisect.runs.plain_json import to_bytes
from precision_bisect.runs.results.curve_of_result import KeptError
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.run_status import (
    EndedTrial,
    Process,
    RunningTrial,
    RunStatus,
    StartedTrial,
)
from precision_bisect.runs.runfolder import EVENTS, STATUS

INTERVAL_S = 0.5
"""The file is written no more often than this."""
HEARTBEAT_S = 10.0
"""And no less often, so that other machines see that the run goes on."""
# A disk that hangs may not keep the run from its end for longer.
_PATIENCE_S = 30.0


class LiveStatus:
    """An observer that keeps the file up to date, from the first `RunStarted` on.

    A thread writes, so that the search never waits for the disk. `process` is part of the file.
    `trouble` says why the first write that failed did.
    """

    def __init__(self, path: Path, process: Process) -> None:
        self.trouble: OSError | None = None
        self._path = path
        self._process = process
        self._started = now()
        self._taken: str | None = None
        self._progress = Progress()
        self._begun = time.monotonic()
        self._changed = threading.Lock()
        self._news = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event, /) -> None:
        """Take one event; never raises."""
        with self._changed:
            self._progress.take(event)
            self._news = True
        if isinstance(event, RunStarted) and self._thread is None:
            owner = owner_of(self._path.parent)
            self._taken = owner.since if owner else None
            self._write(self._contents())
            self._thread = threading.Thread(target=self._work, name="live status", daemon=True)
            self._thread.start()

    def close(self, ending: dict[str, Any] | None) -> None:
        """End the writing; the last status, if one was begun, is what it held but for `ending`.

        Without an ending the last one stays.
        """
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        if ending is not None:
            over = {"in_flight": (), "about_left": 0, "done": 1.0, **ending}
            self._write(replace(self._contents(), **over))

    def _work(self) -> None:
        written = time.monotonic()
        while not self._ended.wait(INTERVAL_S):
            if self._news or time.monotonic() - written >= HEARTBEAT_S:
                self._write(self._contents())
                written = time.monotonic()

    def _write(self, status: RunStatus) -> None:
        try:
            with whole(self._path) as stream:
                stream.write(to_bytes(status, indent=2))
        except OSError as error:
            self.trouble = self.trouble or error

    def _contents(self) -> RunStatus:
        """Return what is true now; a run has started."""
        with self._changed:
            self._news = False
            progress = self._progress
            assert progress.started is not None
            return RunStatus(
                **asdict(self._process),
                started=self._started,
                taken=self._taken,
                updated=now(),
                seconds=round(time.monotonic() - self._begun, 3),
                run=progress.started,
                phase=progress.phase,
                trials=progress.trials,
                builds=progress.builds,
                evaluations=progress.evaluations,
                done=round(progress.done, 3),
                unresolved=dict(progress.unresolved),
                best=progress.shown_best,
                narrowed_to=progress.narrowed_to,
                about_left=progress.about_left,
                seconds_left=progress.seconds_left,
                in_flight=[
                    RunningTrial.of(proposal, seconds=round(time.monotonic() - begun, 3))
                    for proposal, begun in progress.in_flight.values()
                ],
                last=[EndedTrial.by(trial.proposal, trial.outcome) for trial in progress.last],
            )


# More bytes than any line has.
_TAIL = 1 << 20


class EventLog:
    """An observer that appends to a file, from the first `RunStarted` on.

    Until then nothing is written, and what happened is held back. So that each trial is in the log
    once, those recalled from the ledger are counted in one line, and a phase is named where a
    trial of it is evaluated. `run_started` tells of the `process`, too.

    A write that fails loses its line and nothing else: `trouble` says why the first one failed,
    and once writing works again a line says how many are missing.
    """

    def __init__(self, path: Path, process: Process) -> None:
        self.trouble: OSError | None = None
        self._path = path
        self._process = process
        self._file: int | None = None
        self._held: list[bytes] = []
        self._open = False
        self._phase: PhaseStarted | None = None
        self._recalled = 0
        self._lost = 0

    def __call__(self, event: Event, /) -> None:
        """Log one event; never raises."""
        match event:
            case PhaseStarted():
                self._phase = event
            case TrialFinished(recalled=True):
                self._recalled += 1
            case SamplesRead():
                pass  # figures of somebody's data, which no bundle of a run's files may tell
            case RunStarted():
                self._open = True
                self.write({**record(event), **plain_json.plain(self._process)})
            case TrialStarted() | TrialsEnded():
                self._catch_up()
                self.write(record(event))
            case _:
                self.write(record(event))

    def write(self, values: dict[str, Any]) -> None:
        """Append one line with the time; never raises."""
        line = to_bytes({"time": now(), **values})
        if not self._open:
            self._held.append(line)
            return
        for entry in (*self._held, line):
            self._try_append(entry)
        self._held = []

    def close(self, values: dict[str, Any] | None) -> None:
        """Append the last line, if there is one and the log was begun, and close the file."""
        if self._open and values is not None:
            self._catch_up()
            self.write(values)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._open = False

    def _catch_up(self) -> None:
        """Log what was held back until a trial is evaluated."""
        if self._recalled:
            self.write({"event": "recalled", "trials": self._recalled})
            self._recalled = 0
        if self._phase is not None:
            self.write(record(self._phase))
            self._phase = None

    def _try_append(self, line: bytes) -> None:
        lost = {"time": now(), "event": "lost", "lines": self._lost}
        try:
            if self._file is None:
                self._file = _opened(self._path)
            _append(self._file, to_bytes(lost) + line if self._lost else line)
            self._lost = 0
        except OSError as error:
            self._lost += 1
            self.trouble = self.trouble or error


def _opened(path: Path) -> int:
    """Return the file, ready to append to; a line that a kill or a full disk cut off goes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | CAREFULLY, 0o666)
    size = os.lseek(file, 0, os.SEEK_END)
    start = os.lseek(file, max(0, size - _TAIL), os.SEEK_SET)
    whole = os.read(file, _TAIL).rfind(b"\n") + 1 if size else 0
    if start + whole < size:
        os.ftruncate(file, start + whole)
    return file


def _append(file: int, data: bytes) -> None:
    """Append all of it in one write, or none. Raises OSError."""
    before = os.lseek(file, 0, os.SEEK_END)
    written = os.write(file, data)
    if written < len(data):
        os.ftruncate(file, before)
        raise OSError(0, "no space is left for a whole line")


def record(event: Event) -> dict[str, Any]:
    """Return the kind of an event and all its fields; what a trial is and showed side by side."""
    kind = re.sub(r"(?<=.)([A-Z])", r"_\1", type(event).__name__).lower()
    match event:
        case TrialStarted():
            values = plain_json.plain(StartedTrial.of(event.proposal))
        case TrialFinished():
            values = plain_json.plain(EndedTrial.by(event.proposal, event.outcome))
            values["recalled"] = event.recalled
        case _:
            values = plain_json.plain(event)
    return {"event": kind, **values}


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
