"""What a run folder holds, read and never written: the report's only source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_bisect.errors import RunFolderError
from precision_bisect.ledger.ledger_reader import Recorded, read_ledger
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.runfolder import (
    AUTOCAST,
    LAYER_PRECISIONS,
    LAYERS,
    LEDGER,
    POLYGRAPHY_SCRIPT,
    RESULT,
    RUN_SCRIPT,
    STATUS,
    TRTEXEC,
)
from precision_bisect.verifying.verification import read_verification

DIAGNOSIS = "diagnosis.json"
COPIED = (LAYER_PRECISIONS, TRTEXEC, POLYGRAPHY_SCRIPT, AUTOCAST, RUN_SCRIPT)
LARGEST_COPIED = 512 * 1024
"""Bytes: a longer file is named in the report, and not copied into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search: the ledger of a run, or of one rung of a ladder; `title` is "" for a run's."""

    title: str
    recorded: Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a run folder, each as parsed JSON, empty where it is not there yet.

    `result` is empty, too, while a run goes on that has found something before: it is the former
    answer. `verified` is what `verify` has seen, maybe of a former answer. `exports` are texts by
    file name, None for one that is too long to copy.
    """

    searches: Sequence[Search]
    result: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)
    exports: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def looked_into(self) -> Mapping[str, Any]:
        """What `verify` has seen of this answer, empty where it was not asked."""
        same = self.result and set(self.verified.get("kept", ())) == set(self.result["kept"])
        return self.verified if same else {}


def read(folder: Path) -> Source:
    """Read a run folder, finished or not. Raises RunFolderError where it is none."""
    ledgers = sorted(folder.glob(f"rung-*/{LEDGER}"), key=_number)
    if (folder / LEDGER).exists():
        searches = [Search(title="", recorded=read_ledger(folder / LEDGER))]
    else:
        searches = [Search(title=_title(path), recorded=read_ledger(path)) for path in ledgers]
    if not searches:
        raise RunFolderError(
            f"{folder} is no run folder, it has no {LEDGER}",
            "name the one that the search was told by --out, or MODEL.precision-bisect",
        )
    told = _json(folder / STATUS)
    unfinished = told.get("state") == "searching"
    return Source(
        searches=searches,
        result={} if unfinished else _json(folder / RESULT),
        told=told,
        layers=_json(folder / LAYERS),
        diagnosis={} if unfinished else _json(folder / DIAGNOSIS),
        verified=read_verification(folder),
        exports={} if unfinished else _exports(folder),
    )


def _number(path: Path) -> int:
    """Return the place of a rung's search among those of its ladder."""
    number = path.parent.name.split("-")[1]
    return int(number) if number.isdecimal() else 0


def _title(path: Path) -> str:
    number, _, low = path.parent.name.removeprefix("rung-").partition("-")
    return f"search {number}: {low}"


def _json(path: Path) -> dict[str, Any]:
    """Return what a file holds, {} where it is not there. Raises RunFolderError."""
    try:
        return plain_json.read_object(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from error
    except ValueError as error:
        raise foreign(path) from error


def foreign(path: Path) -> RunFolderError:
    """Return the error for a file, or a folder, that is not as this version writes it."""
    return RunFolderError(
        f"{path} holds what this version cannot read", "use the version that ran the search"
    )


def _exports(folder: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in COPIED:
        path = folder / name
        if path.is_file():
            short = path.stat().st_size <= LARGEST_COPIED
            found[name] = path.read_text("utf-8", errors="replace") if short else None
    return found
