"""The ledger on SQLite: a header that says what was searched, and the trials.

The intent is committed before a trial starts and the outcome before the driver goes on, each in a
transaction of its own (WAL). So a killed run has lost at most the trial in flight. A machine that
stops may have lost more, yet nothing that is wrong: before a plan is built all of it is on the
disk, unless that was waited for within the last second, as of quick trials that would take most of
the driver's own time.

A trial that was cut off has no outcome and is tried again. One of the search that has ended the
process three times is recorded as crashed, so that a plan that kills it cannot do so for ever: the
search goes round it. Where a crash would decide the run's ending (preflight, ranking, re-check)
the kills are taken for somebody else's, however many.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from precision_bisect.errors import RunFolderError
from precision_bisect.runs import plain_json
from precision_bisect.runs.ledger.fingerprint import difference_words
from precision_bisect.runs.ledger.ledger_reader import (
    ENDED,
    TABLES,
    Header,
    check_file,
    evidence_text,
    trial_of,
)
from precision_bisect.trial import Identity, Kind, Outcome, Phase, Proposal, Trial, TrialStatus

SYNC_S = 1.0
"""A machine that stops may cost the trials of so many seconds, and predictions."""
MOST_STARTS = 3
"""How often a trial may be started before it counts as crashed."""
# Selects the trial of an identity.
_THIS = "plan = ? AND samples = ? AND kind = ? AND draw = ? AND case_name = ?"
_ANEW = "choose another --out, or replace it with --overwrite"


class SqliteLedger:
    """A ledger in one file. Get it from `open_ledger`; use it as a context manager.

    All methods raise RunFolderError when the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._synced_at = -SYNC_S
        check_file(path)
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        try:
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._connection.close()
            raise _unusable(path, error) from error

    def header(self) -> Header | None:
        """Return the header, None for a file without tables."""
        with self._transaction() as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if tables == (0,):
                return None
            rows = connection.execute("SELECT key, value FROM header").fetchall()
            return Header.of_rows(self._path, rows)

    def begin(self, header: Header) -> None:
        """Make the tables and write the header, all or nothing."""
        rows = plain_json.plain(header)
        with self._transaction() as connection:
            for statement in TABLES.split(";\n"):
                connection.execute(statement)
            connection.executemany(
                "INSERT INTO header VALUES (?, ?)",
                [(key, json.dumps(value, sort_keys=True)) for key, value in rows.items()],
            )

    def start(self, proposal: Proposal) -> None:
        """Record that a trial begins."""
        with self._transaction(synced=self._due(proposal)) as connection:
            connection.execute(
                "INSERT INTO trials (plan, samples, kind, draw, case_name, phase, kept, reason) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET attempts = attempts + 1",
                (*proposal.identity, proposal.phase, len(proposal.plan), proposal.reason),
            )

    def finish(self, proposal: Proposal, outcome: Outcome) -> None:
        """Record how a started trial ended. A finished trial never changes."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE trials SET status = ?, verdict = ?, error = ?, message = ?, wall_s = ?, "
                f"evidence = ? WHERE {_THIS} AND status IS NULL",
                (
                    outcome.status,
                    outcome.verdict,
                    outcome.error,
                    outcome.message,
                    outcome.wall_s,
                    evidence_text(outcome.evidence),
                    *proposal.identity,
                ),
            )

    def trials(self) -> Sequence[Trial]:
        """Return the trials that have ended, in the order they were started."""
        with self._transaction() as connection:
            return [trial_of(row) for row in connection.execute(ENDED).fetchall()]

    def orphans(self) -> frozenset[Identity]:
        """Return the trials that have begun and not ended."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT plan, samples, kind, draw, case_name FROM trials WHERE status IS NULL"
            )
            return frozenset(rows.fetchall())

    def withdraw(self, proposal: Proposal) -> None:
        """Take back one start of a trial that has not ended, as if it had not been made."""
        with self._transaction() as connection:
            connection.execute(
                f"UPDATE trials SET attempts = attempts - 1 WHERE {_THIS} AND status IS NULL",
                proposal.identity,
            )
            connection.execute("DELETE FROM trials WHERE attempts < 1 AND status IS NULL")

    def reopen(self, proposal: Proposal) -> None:
        """Forget the outcome of a trial whose process was lost, so that it is tried again."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE trials SET status = NULL, verdict = NULL, error = NULL, message = '', "
                f"evidence = '{{}}' WHERE {_THIS} AND verdict IS NULL",
                proposal.identity,
            )

    def bury_orphans(self) -> None:
        """Record trials of the search that ended the process as often as allowed as crashed."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE trials SET status = ?, message = ? "
                "WHERE status IS NULL AND attempts >= ? AND phase IN (?, ?, ?, ?, ?)",
                (
                    TrialStatus.CRASHED,
                    f"ended the process {MOST_STARTS} times",
                    MOST_STARTS,
                    Phase.CURVE,
                    Phase.SEARCH,
                    Phase.CERTIFICATE,
                    Phase.SPEED,
                    Phase.EXPLANATION,
                ),
            )

    def note_wall(self, seconds: float) -> None:
        """Record the seconds that all sessions of the run have taken."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO header VALUES ('wall_s', ?)", (json.dumps(seconds),)
            )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _due(self, proposal: Proposal) -> bool:
        """Tell whether to wait for the disk before a trial, which is then taken for granted."""
        now = time.monotonic()
        if proposal.kind is Kind.PREDICT or now - self._synced_at < SYNC_S:
            return False
        self._synced_at = now
        return True

    @contextmanager
    def _transaction(self, *, synced: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
            self._connection.execute("BEGIN")
            yield self._connection
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _unusable(self._path, error) from error
        except ValueError as error:  # what JSON, enums and outcomes say to foreign values
            raise RunFolderError(
                f"the ledger {self._path} holds what this version cannot read: {error}",
                "resume it with the version that wrote it, or start anew with another --out",
            ) from error
        finally:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):
                    self._connection.rollback()


def open_ledger(
    path: Path,
    fingerprint: Mapping[str, Any],
    *,
    resume: bool,
    options: Mapping[str, Any] | None = None,
    plugins: Mapping[str, str] | None = None,
) -> SqliteLedger:
    """Open the ledger at `path`, new or to go on with.

    With `resume`, a missing ledger is begun, so that a run killed before its first trial can be
    resumed too. `options` and `plugins` are as in `Header`, for a new one. Raises RunFolderError
    for an existing run without `resume`, and for a header that differs from `fingerprint`, naming
    what does.
    """
    ledger = SqliteLedger(path)
    try:
        recorded = ledger.header()
        # A new ledger, or one whose process died as it began.
        if recorded is None:
            new = Header(fingerprint=fingerprint, options=options or {}, plugins=plugins or {})
            ledger.begin(new)
        elif resume:
            # The hint names flags, and those are told by options, not by the fingerprint.
            before = recorded.options
            if differences := difference_words(
                recorded.fingerprint, fingerprint, before, options or before
            ):
                raise RunFolderError(
                    f"cannot resume {path.parent}: {differences}",
                    f"run with what was used before, {_ANEW}",
                )
            ledger.bury_orphans()
        else:
            another = recorded.fingerprint.get("model") != fingerprint.get("model")
            raise RunFolderError(
                f"{path.parent} already holds a run{' of another model' * another}",
                f"{'' if another else 'continue it with --resume, '}{_ANEW}",
            )
    except BaseException:
        ledger.close()
        raise
    return ledger


def _unusable(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> RunFolderError:
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_NOTADB or str(error).startswith("no such"):
        return RunFolderError(f"{path} is no ledger of precision-bisect: {error}", _ANEW)
    if code is not None and code & 0xFF == sqlite3.SQLITE_CORRUPT:
        return RunFolderError(f"{path} is damaged: {error}", _ANEW)
    if isinstance(error, UnicodeDecodeError):
        return RunFolderError(f"{path} is damaged: its tables are no text", _ANEW)
    return RunFolderError(
        f"cannot use the ledger {path}: {error}",
        "check that the folder is writable, has free space, and that no limit of file sizes "
        "or open files (ulimit -f, -n) holds, then go on with --resume",
    )
