"""Whose a folder is: what others have made in it is neither replaced nor removed.

A folder is known as ours by what its files say, never by their names.
"""

import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import RunFolderError, first_of
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.plugins import EXPORTERS, installed
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import (
    ENGINES,
    EXPORTS,
    LEDGER,
    LOCK,
    LOGS,
    OWN_FILES,
    OWNER,
    POINT_FOLDER,
    POLYGRAPHY_SCRIPT,
    RESULT,
    RUN_SCRIPT,
    RUNG_FOLDER,
    SCALES,
    TORCH_AUTOCAST,
    TRTEXEC,
    refuse_links,
)

# Bytes: within them a file says what it is.
_BEGINNING = 2**16
# As every version of the ledger has it.
_TABLES = b"CREATE TABLE header (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
_RESULT_KEYS = ("schema", "status", "low", "high", "kept", "layers_total", "fingerprint")
_OWNER_KEYS = ("pid", "host", "process_started", "since")
_MARK = b"Written by precision-bisect"
_MARKED = (TRTEXEC, POLYGRAPHY_SCRIPT, RUN_SCRIPT, TORCH_AUTOCAST)
_LOG = re.compile(r"\d{6}-[a-z_]+\.log")
_ENGINE = re.compile(r"[0-9a-f]{16}")
# So many names of strange files are told.
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a command may write into a folder, and what tells that the folder is its own.

    `appends` tells that some files are written in place, which would follow a link.
    """

    names: Callable[[], Collection[str]]
    known: Callable[[Path], bool]
    appends: bool = True

    def strange(self, folder: Path) -> Sequence[str]:
        """Return what would be replaced and is not known to be ours."""
        there = [name for name in dict.fromkeys(self.names()) if _in_the_way(folder / name)]
        return [] if not there or self.known(folder) else there

    def check(self, folder: Path) -> None:
        """Raise RunFolderError where something of somebody else's would be replaced."""
        if self.appends:
            refuse_links(folder)
        has_owner = (folder / LOCK).exists() and has_keys(folder / OWNER, _OWNER_KEYS)
        if not has_owner and (there := self.strange(folder)):
            raise RunFolderError(
                f"{folder} holds {first_of(there, _NAMED)}, and is no folder that "
                "precision-bisect has written",
                "choose another --out, or move what is there away",
            )


def is_run(folder: Path) -> bool:
    """Tell whether the folder is that of a run, or of a ladder."""
    ledgers = (folder, *matching(folder, RUNG_FOLDER))
    return any(map(_has_ledger, ledgers)) or has_keys(folder / RESULT, _RESULT_KEYS)


def holds_exports(folder: Path) -> bool:
    """Tell whether exports of a plan were written into the folder."""
    return is_run(folder) or any(begins_with(folder / name, _MARK) for name in _MARKED)


def has_keys(path: Path, keys: Collection[str]) -> bool:
    """Tell whether a file is a JSON object with these keys."""
    with suppress(OSError, ValueError):
        return plain_json.read_object(path).keys() >= set(keys)
    return False


def refuse_replacing(path: Path, mark: bytes) -> None:
    """Raise RunFolderError for a file that is there, and that has no such mark of ours."""
    if path.is_file() and not begins_with(path, mark):
        raise RunFolderError(
            f"{path} is there, and precision-bisect has not written it",
            "name another file, or move that one away",
        )


def begins_with(path: Path, mark: bytes) -> bool:
    """Tell whether a plain file has these bytes in its beginning."""
    with suppress(OSError):
        if plain_size(path):
            with path.open("rb") as stream:
                return mark in stream.read(_BEGINNING)
    return False


def _has_ledger(folder: Path) -> bool:
    # Not by SQLite: even to look it may leave files beside one that is somebody else's. The log
    # has the tables until they are moved from there.
    return any(begins_with(folder / name, _TABLES) for name in (LEDGER, f"{LEDGER}-wal"))


def _in_the_way(path: Path) -> bool:
    """Tell whether there is anything that could be lost."""
    with suppress(OSError):
        if path.name == LOCK:  # ours stays empty
            return path.is_file() and path.stat().st_size > 0
        if path.name == LEDGER and path.is_file():  # so does ours that could not be opened
            return path.stat().st_size > 0
        if path.name == OWNER and (path.parent / LOCK).exists():
            return False
        return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)
    return False


def exported_texts() -> list[str]:
    """Return the names of the exports that are one text, ours and others', sorted."""
    names = (name for name in installed(EXPORTERS) if name and name not in OWN_FILES)
    return [name for name in names if Path(name).name == name]


def own_files() -> list[str]:
    """Return the names of all files that a run writes, in the order of removal."""
    return [*exported_texts(), *OWN_FILES]


RUN = Claim(names=lambda: [*own_files(), LOGS, ENGINES, LOCK, OWNER], known=is_run)
EXPORTED = Claim(
    names=lambda: [*EXPORTS, *exported_texts(), SCALES], known=holds_exports, appends=False
)


def logs(run: Path) -> list[Path]:
    """Return the logs of trials in a run folder."""
    return matching(run / LOGS, _LOG)


def new_log(folder: Path, what: str) -> Path:
    """Make an empty log with the next number that is free in a folder of logs. Raises OSError."""
    folder.mkdir(exist_ok=True)
    number = max((int(path.name[:6]) for path in matching(folder, _LOG)), default=0)
    while True:
        number += 1
        path = folder / f"{number:06}-{what}.log"
        # Two workers may look for a free number at the same time.
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            return path


def engines(run: Path) -> list[Path]:
    """Return the folders of the engines of trials in a run folder."""
    return matching(run / ENGINES, _ENGINE)


def rungs(run: Path) -> list[Path]:
    """Return the folders of the searches of a ladder in a run folder."""
    return [path for path in matching(run, RUNG_FOLDER) if _has_ledger(path)]


def clear(run: Path) -> None:
    """Remove what runs have written into a folder of theirs, and nothing else. Raises OSError."""
    points = [path for path in matching(run, POINT_FOLDER) if holds_exports(path)]
    for folder in (*rungs(run), *points, run):
        for engine in engines(folder):
            shutil.rmtree(engine, ignore_errors=True)
        for path in (*logs(folder), *(folder / name for name in own_files())):
            path.unlink(missing_ok=True)
        emptied = [folder / LOGS, folder / ENGINES, *([] if folder == run else [folder])]
        for path in emptied:
            with suppress(OSError):  # somebody has put something of his own there
                path.rmdir()


def matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return what has such a name in a folder, in the order of names."""
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    return []
