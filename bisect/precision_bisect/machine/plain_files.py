"""Files that are only read where they are plain ones, and where memory holds what they say."""

import errno
import os
import stat
from pathlib import Path

_GIB = 2**30


def plain_size(path: Path) -> int:
    """Return the bytes of a plain file, or of what a link to one leads to.

    Raises OSError for a missing one, and for folders, pipes and devices: those have no end, or
    wait for whoever writes into them.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return found.st_size


def too_large(nbytes: int) -> str:
    """Return how much that is and how much memory is free where it is more, else ""."""
    # Few commands read anything that large.
    import psutil

    free = psutil.virtual_memory().available
    if nbytes <= free:
        return ""
    return f"{nbytes / _GIB:.3g} GiB, and {free / _GIB:.1f} GiB of memory are free"
