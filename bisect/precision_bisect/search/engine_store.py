"""The engines of trials on disk, and the cap on what they and the logs take.

An engine is kept so that a later trial or a user can open it without building it again.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from precision_bisect.plan import Plan
from precision_bisect.runs.belonging import engines, logs
from precision_bisect.runs.monitoring.events import Event, TrialFinished
from precision_bisect.runs.runfolder import ENGINES, TIMING_CACHE
from precision_bisect.trial import Kind, Verdict


def engine_folder(engines: Path, plan: Plan) -> Path:
    """Return the folder for the engine of a plan's trial."""
    # A hash, since a plan's key lists layers and may be longer than a file name can be.
    return engines / hashlib.sha256(plan.key.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Store:
    """An observer that keeps engines, logs and the timing cache of a run below a cap.

    `run` is the run folder, `cap` is in bytes. Engines that were rejected go first, the oldest of
    them at the start; then the other engines, except the smallest that passed; then logs. The
    accepted engine and the timing cache count, and are never removed.
    """

    run: Path
    cap: float
    _rejected: set[str] = field(init=False, default_factory=set)
    _best: Plan | None = field(init=False, default=None)

    def __call__(self, event: Event) -> None:
        """Learn from a trial that has ended, and remove what is beyond the cap."""
        # Neither a forecast nor a trial of another case tells of the run's engines.
        if not isinstance(event, TrialFinished):
            return
        plan, kind, case = event.proposal.plan, event.proposal.kind, event.proposal.case
        if kind is Kind.PREDICT or case:
            return
        if event.outcome.verdict is not Verdict.PASS:
            self._rejected.add(engine_folder(self._engines, plan).name)
        elif self._best is None or plan < self._best:
            self._best = plan
        # A resumed run recalls all earlier trials at its start; one look at the disk is enough.
        if not event.recalled:
            self.trim()

    def trim(self) -> None:
        """Remove what is beyond the cap."""
        used = sum(map(_size, (*self._parts(), self.run / TIMING_CACHE)))
        for path in self._removable():
            if used <= self.cap:
                return
            used -= _size(path)
            _remove(path)

    @property
    def _engines(self) -> Path:
        return self.run / ENGINES

    def _parts(self) -> Sequence[Path]:
        return [*_oldest_first(engines(self.run)), *_oldest_first(logs(self.run))]

    def _removable(self) -> Iterator[Path]:
        folders = _oldest_first(engines(self.run))
        yield from (path for path in folders if path.name in self._rejected)
        kept = None if self._best is None else engine_folder(self._engines, self._best)
        yield from (p for p in folders if p.name not in self._rejected and p != kept)
        yield from _oldest_first(logs(self.run))


def _oldest_first(paths: Sequence[Path]) -> Sequence[Path]:
    # The name breaks ties where the file system counts in whole seconds.
    with suppress(OSError):
        return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return ()


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    total = 0
    for file in files:
        # Another process of the run may remove a file between the listing and this look.
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
