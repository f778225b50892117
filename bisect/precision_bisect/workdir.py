"""Folders for what a command needs on disk only while it goes on."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precision_bisect.errors import RunFolderError

_OPEN: set[Path] = set()


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
    try:
        yield path
    finally:
        _remove(path)


def remove_all() -> None:
    """Remove the folders that are open, for a process that is about to end at once."""
    for path in tuple(_OPEN):
        _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _OPEN.discard(path)
