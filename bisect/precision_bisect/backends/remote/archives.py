"""Archives of files that go to a host, and of those that come back, which are untrusted."""

import io
import re
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from precision_bisect.backends.trtexec.trtexec_results import DIGITS
from precision_bisect.machine.process_ends import of_shell

BESIDE, _MOST_FILES = 2**20, 2**12
"""Bytes that come beside the largest file, and how many files are looked at."""
# A file of ours, or of a tensor as trtexec calls it.
_PLAIN_NAME = re.compile(r"[a-z][a-z0-9.-]{,31}|\d{4,9}_[A-Za-z0-9._,-]{1,180}\.npy", re.ASCII)


def pack(files: Mapping[str, bytes | Path], stream: IO[bytes]) -> None:
    """Write an archive, to be read from its beginning."""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, Path):
                entry.size = content.stat().st_size
                with content.open("rb") as source:
                    archive.addfile(entry, source)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    stream.seek(0)


def unpack(
    stream: IO[bytes], into: Path, most_bytes: int, too_large: Callable[[str], Exception]
) -> int:
    """Write what a tool left into a folder; return its code by its `status`, as of `how_ended`.

    Raises EOFError for what is no whole archive, and what `too_large` makes of a name from which
    on the files take more than `most_bytes`.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            if _unpack(archive, into, most_bytes, too_large):
                # A header that is cut off ends it as its end does, which is a block of zeros.
                stream.seek(archive.offset)
                if stream.read(tarfile.BLOCKSIZE).count(0) != tarfile.BLOCKSIZE:
                    raise EOFError
    # Sizes that headers claim are computed with, and asked of the memory.
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
        raise EOFError from error
    if not (status := into / "status").exists():
        raise EOFError
    text = status.read_text(encoding="utf-8", errors="replace")
    return of_shell(int(text)) if DIGITS.fullmatch(text) else 1


def _unpack(
    archive: tarfile.TarFile, into: Path, most_bytes: int, too_large: Callable[[str], Exception]
) -> bool:
    """Return whether the archive was read until it ended."""
    nbytes = 0
    for number, entry in enumerate(archive):
        if number == _MOST_FILES:
            return False
        name = entry.name.rpartition("/")[2]
        # What an archive calls holes takes no room in it.
        nbytes += entry.size
        if nbytes > most_bytes + BESIDE:
            raise too_large(name)
        content = archive.extractfile(entry) if entry.isreg() else None
        if content is not None and _PLAIN_NAME.fullmatch(name):
            with (into / name).open("wb") as file:
                shutil.copyfileobj(content, file)
    return True
