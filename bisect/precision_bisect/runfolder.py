"""The run folder: where everything of one run goes, each file whole or not at all."""

import os
import tempfile
from pathlib import Path

from precision_bisect.errors import RunFolderError

LEDGER = "ledger.sqlite"
RESULT = "result.json"
LAYER_PRECISIONS = "layerPrecisions.txt"
OWN_FILES = (RESULT, LAYER_PRECISIONS, f"{LEDGER}-wal", f"{LEDGER}-shm", LEDGER)
"""In the order of removal: a log left beside a new ledger would be replayed into it."""


class RunFolder:
    """A folder that files can be written to. Raises RunFolderError where that is not so."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
            if overwrite:
                for name in OWN_FILES:
                    (path / name).unlink(missing_ok=True)
            with tempfile.TemporaryFile(dir=path) as probe:
                probe.write(b"\0" * 65536)
                probe.flush()
                os.fsync(probe.fileno())

    @property
    def ledger(self) -> Path:
        """The ledger's path."""
        return self.path / LEDGER

    def write(self, name: str, text: str) -> None:
        """Write a text file: complete under its name, or the old one stays."""
        target = self.path / name
        with _explained(target):
            handle, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                Path(temporary).chmod(0o644)
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise

    def remove(self, name: str) -> None:
        """Remove a file that a former ending of this run left."""
        with _explained(self.path / name):
            (self.path / name).unlink(missing_ok=True)


class _explained:
    """Turns OSError into RunFolderError, with the path and what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise RunFolderError(
                f"cannot write {self._path}: {error.strerror}",
                "choose a writable folder with free space by --out",
            ) from error
