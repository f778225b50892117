"""`precision-bisect status`: what a run is doing, read from its folder and from nothing else.

Only files are read, and none is opened for writing, so a run never notices.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from precision_bisect.errors import RunFolderError
from precision_bisect.runs import plain_json
from precision_bisect.runs.locking import Owner, owner_of
from precision_bisect.runs.results.run_status import RunStatus, read_status
from precision_bisect.runs.runfolder import LEDGER, STATUS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run folder tells: `told` is `status.json`, `state` what is true of it now.

    `state` is that of the file, or "starting" where a process has taken the folder and not begun
    to search yet, or "not_running" where the process that searched is gone. `running` tells
    whether a process is at work in the folder; None where that cannot be known from here.
    `silent_s` are the seconds since the file was written.
    """

    folder: Path
    state: str
    running: bool | None
    silent_s: float
    told: RunStatus

    def to_json(self) -> str:
        """Return the live status, with what is true now, as JSON text."""
        now = {
            "folder": str(self.folder),
            "state": self.state,
            "running": self.running,
            "silent_s": round(self.silent_s, 3),
        }
        return plain_json.dumps({**plain_json.plain(self.told), **now}, indent=2) + "\n"


def look(folder: Path) -> RunState:
    """Return what the run in a folder is doing. Raises RunFolderError where there is none."""
    seen = _look(folder)
    # A run may begin between the looks at its two files; then a second look shows both.
    return _look(folder) if seen.state == "not_running" else seen


def _look(folder: Path) -> RunState:
    owner = owner_of(folder)
    told = _told(folder, owner)
    try:
        updated = datetime.fromisoformat(told.updated)
        return RunState(
            folder=folder,
            state=_state(told, owner),
            running=False if owner is None else owner.alive,
            silent_s=max(0.0, (datetime.now(UTC) - updated).total_seconds()),
            told=told,
        )
    except (TypeError, ValueError) as error:
        raise foreign_status(folder) from error


def foreign_status(folder: Path) -> RunFolderError:
    """Return the error for a live status that is not as this version writes it."""
    return RunFolderError(
        f"{folder / STATUS} holds what this version cannot read",
        "ask the version that runs the search",
    )


def _told(folder: Path, owner: Owner | None) -> RunStatus:
    """Return the contents of the live status. Raises RunFolderError."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise RunFolderError(
            f"{folder} {what}", "name a run folder; one is made once the model has been read"
        )
    if not (folder / STATUS).exists() and owner is not None and owner.alive is not False:
        raise RunFolderError(
            f"{folder} was taken by {owner}, which has not begun to search", "ask again soon"
        )
    if not (folder / STATUS).exists() and (folder / LEDGER).exists():
        raise RunFolderError(
            f"{folder} has a ledger and no {STATUS}",
            "name the folder above where this is one search of a ladder, else go on with --resume",
        )
    try:
        return read_status(folder)
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{folder} is no run folder, it has no {STATUS}",
            "name the one that the search was told by --out, or MODEL.precision-bisect",
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"cannot read {folder / STATUS}: {error.strerror}",
            "check the path, and its permissions",
        ) from error
    except ValueError as error:
        raise foreign_status(folder) from error


def _state(told: RunStatus, owner: Owner | None) -> str:
    """Return what is true of the run now."""
    alive = owner is not None and owner.alive is not False
    # Not by which is later: the clock may have been set in between.
    if owner is not None and alive and told.taken != owner.since:
        return "starting"
    if told.state == "searching" and not alive:
        return "not_running"
    return told.state
