"""Files that are whole under their name or not there at all."""

import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


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
