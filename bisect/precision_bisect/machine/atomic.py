"""Files that are whole under their name or not there at all."""

import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name once it is complete and on the disk. Raises OSError."""
    stream = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed before it takes its name
        dir=path.parent, prefix=f".{path.name}.", delete=False
    )
    temporary = Path(stream.name)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
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
