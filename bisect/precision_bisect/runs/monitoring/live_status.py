"""The live status: one small JSON file that is replaced as the run goes on."""

import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from precision_bisect.machine.plain_files import whole
from precision_bisect.runs.locking import now, owner_of
from precision_bisect.runs.monitoring.events import Event, RunStarted
from precision_bisect.runs.monitoring.run_progress import Progress
from precision_bisect.runs.plain_json import to_bytes
from precision_bisect.runs.results.run_status import Process, RunningTrial, RunStatus, Shown

INTERVAL_S = 0.5
"""The file is written no more often than this."""
HEARTBEAT_S = 10.0
"""And no less often, so that other machines see that the run goes on."""
_PATIENCE_S = 30.0
"""A disk that hangs may not keep the run from its end for longer."""


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
                last=[Shown.by(trial.proposal, trial.outcome) for trial in progress.last],
            )
