"""What a run folder holds, read and never written: the report's only source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from precision_bisect.errors import RunFolderError
from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.runs.ledger.ledger_reader import Recorded, read_ledger
from precision_bisect.runs.results.model_layers import ModelLayers
from precision_bisect.runs.results.on_target import OnTarget, read_on_target
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.run_status import RunStatus
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.results.verification import VerifiedEngine, read_verification
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    DIAGNOSIS,
    LAYER_PRECISIONS,
    LAYERS,
    LEDGER,
    POLYGRAPHY_SCRIPT,
    RESULT,
    RUN_SCRIPT,
    STATUS,
    TORCH_AUTOCAST,
    TRTEXEC,
)
from precision_bisect.runs.typed_json import T, read_typed

COPIED = (LAYER_PRECISIONS, TRTEXEC, POLYGRAPHY_SCRIPT, AUTOCAST, TORCH_AUTOCAST, RUN_SCRIPT)
LARGEST_COPIED = 512 * 1024
"""Bytes: a longer file is named in the report, and not copied into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search: the ledger of a run, or of one rung of a ladder; `title` is "" for a run's."""

    title: str
    recorded: Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a run folder, each None where it is not there yet.

    `result` is None, too, while a run goes on that has found something before: it is the former
    answer. `verified` is what `verify` has seen, `on_target` what came back from a target, maybe
    of a former answer. `exports` are texts by file name, None for one that is too long to copy.
    """

    searches: Sequence[Search]
    result: Result | None = None
    status: RunStatus | None = None
    layers: ModelLayers | None = None
    diagnosis: Findings | None = None
    verified: VerifiedEngine | None = None
    on_target: OnTarget | None = None
    exports: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def looked_into(self) -> VerifiedEngine | None:
        """What `verify` has seen of this answer, None where it was not asked."""
        seen, result = self.verified, self.result
        return seen if seen and result and set(seen.kept) == set(result.kept) else None

    @property
    def judged_on_target(self) -> OnTarget | None:
        """What a target made of this answer, None where none did."""
        seen, result = self.on_target, self.result
        return seen if seen and result and set(seen.kept) == set(result.kept) else None


def read_source(folder: Path) -> Source:
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
    status = _read(RunStatus, folder / STATUS)
    layers = _read(ModelLayers, folder / LAYERS)
    verified = read_verification(folder)
    if status is not None and status.state == "searching":
        return Source(searches=searches, status=status, layers=layers, verified=verified)
    return Source(
        searches=searches,
        result=_result(folder / RESULT),
        status=status,
        layers=layers,
        diagnosis=_read(Findings, folder / DIAGNOSIS),
        verified=verified,
        on_target=read_on_target(folder),
        exports=_exports(folder),
    )


def _number(path: Path) -> int:
    """Return the place of a rung's search among those of its ladder."""
    number = path.parent.name.split("-")[1]
    return int(number) if number.isdecimal() else 0


def _title(path: Path) -> str:
    number, _, low = path.parent.name.removeprefix("rung-").partition("-")
    return f"search {number}: {low}"


def _result(path: Path) -> Result | None:
    """Return what the run has found, None before its end. Raises RunFolderError."""
    return read_result(path, "go on with --resume, which writes it") if path.exists() else None


def _read(kind: type[T], path: Path) -> T | None:
    """Return what a file holds, None where it is not there. Raises RunFolderError."""
    try:
        return read_typed(kind, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}", "check the path, and its permissions"
        ) from error
    except ValueError as error:
        raise foreign_file(path) from error


def foreign_file(path: Path) -> RunFolderError:
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
