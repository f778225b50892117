"""Folders for what a command needs on disk only while it goes on.

They go with the command, however that ends: a small process beside it (the guardian) waits for its
end, which closes the pipe between them, and removes what is left. That works for a kill that no
process can answer, too.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from precision_bisect.errors import RunFolderError

_OPEN: set[Path] = set()
# Guardians that nobody waits for.
_AT_WORK: list["subprocess.Popen[bytes]"] = []
# So long the guardian tries at most, and it looks again for a second after the folder is gone:
# processes that the command started may still be writing.
_PATIENCE_S = 15.0
_GUARDIAN = """
import os, shutil, sys, time
while os.read(0, 1):
    pass
end, looks = time.monotonic() + float(sys.argv[2]), 0
while looks < 20 and time.monotonic() < end:
    looks = 0 if os.path.lexists(sys.argv[1]) else looks + 1
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(0.05)
"""


@contextmanager
def workdir() -> Iterator[Path]:
    """Yield an empty folder (under TMPDIR) that is gone afterwards. Raises RunFolderError."""
    try:
        path = Path(tempfile.mkdtemp(prefix="precision-bisect-"))
    except OSError as error:
        raise RunFolderError(
            f"cannot make a temporary folder: {error.strerror}",
            "point TMPDIR to a writable folder with free space",
        ) from error
    _OPEN.add(path)
    # A killed process removes nothing: another one waits for its end.
    guardian = _guardian(path)
    try:
        yield path
    finally:
        _remove(path)
        if guardian is not None:
            _dismiss(guardian, path)


def remove_all() -> None:
    """Remove the folders that are open, for a process that is about to end at once."""
    for path in tuple(_OPEN):
        _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _OPEN.discard(path)


def _guardian(path: Path) -> "subprocess.Popen[bytes] | None":
    """Start the process that removes the folder once this one has ended; None where none can run.

    It has a session of its own, so that what ends the command from a terminal spares it, and of
    our streams it holds none, so that whoever reads them sees their end.
    """
    if os.name != "posix" or not sys.executable:
        return None
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARDIAN, str(path), str(_PATIENCE_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    return None


def _dismiss(guardian: "subprocess.Popen[bytes]", path: Path) -> None:
    """End the guardian; where something still writes into the folder, leave that to it."""
    gone = not path.exists()
    if gone:
        guardian.kill()
    if guardian.stdin is not None:
        guardian.stdin.close()
    if gone:
        guardian.wait()
    else:
        _AT_WORK.append(guardian)
