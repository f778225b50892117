"""The structured log: one JSON object a line, appended as things happen."""

import os
import re
from pathlib import Path
from typing import Any

from precision_bisect.runs import plain_json
from precision_bisect.runs.locking import now
from precision_bisect.runs.monitoring.events import (
    Event,
    PhaseStarted,
    RunStarted,
    SamplesRead,
    TrialFinished,
    TrialsEnded,
    TrialStarted,
)
from precision_bisect.runs.plain_json import to_bytes
from precision_bisect.runs.results.run_status import Asked, Process, Shown

_TAIL = 1 << 20
"""More bytes than any line has."""
_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""No link is followed, and nobody waited for who reads a pipe."""


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
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _CAREFULLY, 0o666)
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
            values = plain_json.plain(Asked.of(event.proposal))
        case TrialFinished():
            values = plain_json.plain(Shown.by(event.proposal, event.outcome))
            values["recalled"] = event.recalled
        case _:
            values = plain_json.plain(event)
    return {"event": kind, **values}
