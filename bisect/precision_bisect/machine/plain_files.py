"""Files: read only where they are plain and memory holds them, written whole or not at all."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from precision_bisect.errors import PrecisionBisectError, RunFolderError

ROOM = "point TMPDIR to a writable folder with free space"
ROOM_LATER = "free some space, then go on with --resume"
_GIB = 2**30
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags to open by: no link is followed, and nobody waited for at the other end of a pipe."""


def plain_size(path: Path) -> int:
    """Return the bytes of a plain file, or of what a link to one leads to.

    Raises OSError for a missing one, and for folders, pipes and devices: those have no end, or
    wait for whoever writes into them.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return status.st_size


def too_large(nbytes: int) -> str:
    """Return how much that is and how much memory is free where it is more, else ""."""
    # Few commands read anything that large.
    import psutil

    free = psutil.virtual_memory().available
    if nbytes <= free:
        return ""
    return f"{nbytes / _GIB:.3g} GiB, and {free / _GIB:.1f} GiB of memory are free"


@contextmanager
def written(
    what: str, hint: str = ROOM_LATER, kind: type[PrecisionBisectError] = RunFolderError
) -> Iterator[None]:
    """Turn an OSError inside the block into an error: that `what` cannot be written, and why."""
    try:
        yield
    except OSError as error:
        limit = "allow larger files (ulimit -f), or " if error.errno == errno.EFBIG else ""
        raise kind(f"cannot write {what}: {error.strerror}", f"{limit}{hint}") from error


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name once it is complete and on the disk. Raises OSError.

    Who may read it is what the umask says: `tempfile` would make it the owner's alone.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    stream = temporary.open("xb")
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_debris(folder: Path, names: Collection[str]) -> None:
    """Remove what writers of these files left who were killed; for whoever alone writes them."""
    temporary = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.[a-z0-9_]{{8}}")
    with suppress(OSError):
        for path in folder.iterdir():
            if temporary.fullmatch(path.name):
                path.unlink(missing_ok=True)
