"""One driver per run folder: an operating system's lock, and a note of who holds it.

The lock (by filelock) is on `.lock`, which stays empty and stays where it is. The system frees it
when its holder ends, however that ends. Who the holder is stands in a file beside it, since a
locked file cannot be read everywhere.
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.plain_files import remove_debris, whole
from precision_bisect.runs import belonging, plain_json
from precision_bisect.runs.belonging import RUN, Claim, own_files
from precision_bisect.runs.runfolder import LOCK, OWNER, RunFolder, folder_errors
from precision_bisect.runs.typed_json import read_or_none

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from psutil import Process

# How far the start of a process may seem to move: Linux tells its own in whole seconds.
_SAME_START_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that writes into a run folder, `since` when (UTC, ISO 8601).

    `process_started` is in seconds after the start of the system, which setting the clock does not
    move: with it a process that has got the number of a former one is told apart.
    """

    pid: int
    host: str
    process_started: float
    since: str

    @classmethod
    def here(cls) -> Self:
        """Return this process, from now on."""
        import psutil

        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            process_started=_started(psutil.Process()),
            since=now(),
        )

    @property
    def alive(self) -> bool | None:
        """Whether the process still runs; None where that cannot be known: on another host."""
        if self.host != socket.gethostname():
            return None
        import psutil

        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(_started(process) - self.process_started) < _SAME_START_S
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


def _started(process: "Process") -> float:
    """Return when a process began, in seconds after the start of the system."""
    import psutil

    booted = psutil.boot_time()
    return process.create_time() - booted


def now() -> str:
    """Return the time, UTC, as ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def owner_of(folder: Path) -> Owner | None:
    """Return who was last to take a folder and has not given it back, so far as that is noted."""
    return read_or_none(Owner, folder / OWNER)


class RunLock:
    """The right to write into a folder what `claim` names, which one process at a time has.

    Used as a context manager it takes a folder that has been a run's at once, before anything else
    is done; a new one only by `open`, so that wrong input leaves no folder behind. Leaving the
    context gives it back. All methods raise RunFolderError, naming the owner where there is one,
    and for a folder in which somebody else's files would be replaced.
    """

    def __init__(self, path: Path, claim: Claim = RUN) -> None:
        self._path = path
        self._claim = claim
        self._lock: BaseFileLock | None = None

    def __enter__(self) -> Self:
        if (self._path / LOCK).exists():
            self._take()
        else:
            self._claim.check(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            # Where a run left no more than what was made for it, the note alone tells whose it is.
            try:
                if not self._claim.strange(self._path):
                    with suppress(OSError):
                        (self._path / OWNER).unlink(missing_ok=True)
            finally:  # a second Ctrl-C may come here, and the process may search again
                self._lock.release()
                self._lock = None

    def open(self, *, overwrite: bool, rungs: bool) -> RunFolder:
        """Take the folder and return it; with `overwrite` what runs have left is removed.

        Raises RunFolderError, too, where a run of a pair is, and one of `rungs` is to begin.
        """
        self._take()
        if overwrite:
            with folder_errors(self._path):
                belonging.clear(self._path)
        folder = RunFolder(self._path)
        if folder.ledger.exists() if rungs else belonging.rungs(self._path):
            raise RunFolderError(
                f"{self._path} holds a run {'of a pair of types' if rungs else 'over a ladder'}",
                "replace it with --overwrite, or choose another --out",
            )
        return folder

    def _take(self) -> None:
        if self._lock is not None:
            return
        from filelock import FileLock, Timeout

        self._claim.check(self._path)
        with folder_errors(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._path / LOCK, thread_local=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise _in_use(self._path) from None
        self._lock = lock
        remove_debris(self._path, (OWNER, *own_files()))
        # On a full disk the lock is what counts, and --overwrite may make space.
        with suppress(OSError), whole(self._path / OWNER) as stream:
            stream.write(plain_json.dumps(Owner.here()).encode())


def _in_use(path: Path) -> RunFolderError:
    owner = owner_of(path)
    # Between taking the folder and saying so, the note is the one of a former owner.
    has_owner = owner is not None and owner.alive is not False
    return RunFolderError(
        f"{path} is in use by {owner if has_owner else 'another process'}",
        "wait for its end or stop it, or choose another --out",
    )
