"""Reading a ledger without ever writing to it, also while a run goes on."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from precision_bisect.errors import RunFolderError, shortened
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.plan import Plan
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import LEDGER
from precision_bisect.runs.typed_json import typed
from precision_bisect.trial import (
    Evidence,
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
    Verdict,
)


def evidence_text(evidence: Evidence) -> str:
    """Return the evidence as JSON; fields that hold nothing are left out."""
    values = plain_json.plain(evidence)
    return plain_json.dumps({key: value for key, value in values.items() if value})


LEDGER_SCHEMA = 4
TABLES = """
CREATE TABLE header (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE trials (
    id INTEGER PRIMARY KEY,
    plan TEXT NOT NULL,
    samples TEXT NOT NULL,
    kind TEXT NOT NULL,
    draw INTEGER NOT NULL,
    case_name TEXT NOT NULL,
    phase TEXT NOT NULL,
    kept INTEGER NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 1,
    status TEXT,
    verdict TEXT,
    error REAL,
    message TEXT NOT NULL DEFAULT '',
    wall_s REAL NOT NULL DEFAULT 0,
    evidence TEXT NOT NULL DEFAULT '{}',
    UNIQUE (plan, samples, kind, draw, case_name)
) STRICT;
"""

ENDED = (
    "SELECT plan, samples, kind, draw, case_name, phase, reason, status, verdict, error, "
    "message, wall_s, evidence FROM trials WHERE status IS NOT NULL ORDER BY id"
)
"""Selects the trials that have ended, in the order they were started."""


def trial_of(row: tuple[Any, ...]) -> Trial:
    """Return the trial of one row of `ENDED`. Raises ValueError for what is none."""
    plan, samples, kind, draw, case, phase, reason, status, verdict, error, *others = row
    message, wall_s, text = others
    evidence = typed(Evidence, plain_json.parse(text))
    if (single := evidence.one_by_one) is not None:
        if len(single.numbers) != len(single.errors):
            raise ValueError(f"{len(single.errors)} errors of {len(single.numbers)} samples")
        if not {*single.numbers}.issuperset((*single.failed, *single.unjudged)):
            raise ValueError("samples failed, or were unjudged, that are none of the trial")
    return Trial(
        proposal=Proposal(
            plan=Plan.from_key(plan),
            phase=Phase(phase),
            samples=SampleSet.read(samples),
            kind=Kind(kind),
            draw=draw,
            case=case,
            reason=reason,
        ),
        outcome=Outcome(
            status=TrialStatus(status),
            verdict=Verdict(verdict) if verdict else None,
            error=error,
            message=message,
            wall_s=wall_s,
            evidence=evidence,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Of which run a ledger is.

    Verdicts depend on the `fingerprint`. `options` are all that were asked for, as JSON, and
    `plugins` what each plug-in was installed with, by its kind and name. The sessions that have
    ended took `wall_s` seconds.
    """

    schema: int = LEDGER_SCHEMA
    fingerprint: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    plugins: Mapping[str, str] = field(default_factory=dict)
    wall_s: float = 0.0

    @classmethod
    def of_rows(cls, path: Path, rows: Sequence[tuple[str, str]]) -> Self:
        """Return what the rows of a ledger's header say.

        Raises RunFolderError for another version's, and ValueError for what none has written.
        """
        content = {key: plain_json.parse(value) for key, value in rows}
        if (schema := content.get("schema")) == LEDGER_SCHEMA:
            return typed(cls, content)
        versions = content.get("versions")
        version = versions.get("precision-bisect") if isinstance(versions, dict) else None
        raise RunFolderError(
            f"{path} has schema {shortened(repr(schema))}, this version reads {LEDGER_SCHEMA}",
            f"use {shortened(str(version or 'the version'))} that began it, or search anew with "
            "--overwrite",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a ledger holds: its header, and the trials that have ended, in order of their start."""

    header: Header
    trials: Sequence[Trial]

    @property
    def own(self) -> Sequence[Trial]:
        """The trials of the run's own case, which decide what is its answer."""
        return [trial for trial in self.trials if not trial.proposal.case]


def read_ledger(path: Path) -> Recorded:
    """Return what the ledger at `path` holds at this moment; a run that writes to it goes on.

    Raises RunFolderError for a file that is no ledger, or cannot be read.
    """
    check_file(path)
    if not path.exists():
        raise _without_trials(f"{path.parent} has no {path.name}, and so")
    try:
        return _read(path)
    except (sqlite3.Error, ValueError) as error:
        raise RunFolderError(
            f"{path} is no ledger that this version can read: {error}",
            "name the run folder of a run of this version",
        ) from error


def _without_trials(where: str) -> RunFolderError:
    return RunFolderError(
        f"{where} no trial to go on from",
        "begin the run again with all its flags, or name another run folder",
    )


def check_file(path: Path) -> None:
    """Raise RunFolderError for a ledger that is there and is a folder, a pipe or a device."""
    try:
        plain_size(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"cannot use the ledger {path}: {error.strerror}", "remove it, or choose another --out"
        ) from error


def ledgers(folder: Path) -> Sequence[Path]:
    """Return the ledger of a run, of a ladder those of its searches."""
    own = folder / LEDGER
    return [own] if own.exists() else sorted(folder.glob(f"*/{LEDGER}"))


def recorded_trials(folder: Path) -> list[Trial]:
    """Return the trials of a run, of a ladder those of all its searches. Raises RunFolderError."""
    return [trial for path in ledgers(folder) for trial in read_ledger(path).trials]


def _read(path: Path) -> Recorded:
    # Without a log no run is at work. To take locks all the same, SQLite would leave files beside
    # the ledger, and fail in a folder that cannot be written to.
    at_work = path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode=ro{'' if at_work else '&immutable=1'}"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.execute("BEGIN")
        # The process died as it began, or is about to begin.
        if connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is None:
            raise _without_trials(f"{path} is empty, and so has")
        rows = connection.execute("SELECT key, value FROM header").fetchall()
        # Former schemas have other columns.
        header = Header.of_rows(path, rows)
        trials = connection.execute(ENDED).fetchall()
    return Recorded(header=header, trials=[trial_of(row) for row in trials])
