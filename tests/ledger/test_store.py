"""The ledger keeps what it was told, refuses what it must, and says so in one line."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from golden import make_ledger
from precision_bisect.errors import RunFolderError
from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.ledger_reader import Header, read_ledger
from precision_bisect.runs.ledger.store import MOST_STARTS, SqliteLedger, open_ledger
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus, Verdict

FINGERPRINT = {"model": "a" * 64, "low": "fp16", "seed": 0, "comparator": {"atol": {"y": 0.01}}}
PLAN = Proposal(plan=Plan.of((1, 2)))
PASSED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.5)
FAILED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL, error=float("inf"))
NOBODY = 65534


def fill(path: Path, *, ended: bool = True) -> None:
    """Write a ledger with one trial, ended or not."""
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        ledger.start(PLAN)
        if ended:
            ledger.finish(PLAN, PASSED)


def refusal(path: Path, fingerprint: Mapping[str, Any] = FINGERPRINT, resume: bool = True) -> str:
    """Return the one line with which opening is refused."""
    with pytest.raises(RunFolderError) as refused:
        open_ledger(path, fingerprint, resume=resume)
    assert refused.value.hint
    return refused.value.one_line()


@contextmanager
def unprivileged() -> Iterator[Path]:
    """Yield a folder that belongs to a user without root's rights, as that user."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    """Trials come back equal, infinite errors and unresolved ones included, in their order."""
    path = tmp_path / "ledger.sqlite"
    make_ledger.make(path)
    with open_ledger(path, make_ledger.FINGERPRINT, resume=True) as ledger:
        assert ledger.trials() == make_ledger.TRIALS


def test_the_golden_ledger_of_schema_4_is_read(tmp_path: Path) -> None:
    """A ledger written by the release that introduced the schema resumes unchanged."""
    golden = Path(make_ledger.__file__).with_name("ledger_v4.sqlite")
    path = Path(shutil.copy(golden, tmp_path))
    with open_ledger(path, make_ledger.FINGERPRINT, resume=True) as ledger:
        assert ledger.trials() == make_ledger.TRIALS
        assert ledger.header() == Header(fingerprint=make_ledger.FINGERPRINT)


@pytest.mark.parametrize("schema", [1, 3])
def test_a_ledger_of_an_older_schema_is_refused(tmp_path: Path, schema: int) -> None:
    """It is left alone, with the version that can read it."""
    golden = Path(make_ledger.__file__).with_name(f"ledger_v{schema}.sqlite")
    path = Path(shutil.copy(golden, tmp_path))
    before = path.read_bytes()
    said = refusal(path, make_ledger.FINGERPRINT)
    assert f"has schema {schema}, this version reads 4" in said
    assert "use 0.1.0 that began it, or search anew with --overwrite" in said
    with pytest.raises(RunFolderError, match=f"has schema {schema}, this version reads 4"):
        read_ledger(path)
    assert before == path.read_bytes()


@pytest.mark.parametrize("text", ["", "[]", '{"honours": [{}]}', '{"latency": {"x": 1}}'])
def test_evidence_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    """Evidence that another program wrote ends in one line, not in a traceback."""
    path = tmp_path / "ledger.sqlite"
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trials SET evidence = ?", (text,))
    connection.close()
    with open_ledger(path, FINGERPRINT, resume=True) as ledger, pytest.raises(RunFolderError):
        ledger.trials()


def test_a_finished_trial_never_changes(tmp_path: Path) -> None:
    """Starting, finishing or withdrawing a finished trial again leaves it as it was."""
    path = tmp_path / "ledger.sqlite"
    fill(path)
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        before = ledger.trials()
        ledger.start(PLAN)
        ledger.finish(PLAN, FAILED)
        ledger.withdraw(PLAN)
        assert ledger.trials() == before
        assert [trial.outcome for trial in before] == [PASSED]


def test_an_existing_run_is_not_continued_unasked(tmp_path: Path) -> None:
    """Without resume, a folder that holds a run is refused with what to do."""
    fill(tmp_path / "ledger.sqlite")
    said = refusal(tmp_path / "ledger.sqlite", resume=False)
    assert "already holds a run" in said
    assert "--resume" in said


def test_every_difference_is_named(tmp_path: Path) -> None:
    """A run that was begun otherwise is refused with what differs, in the words of flags."""
    fill(tmp_path / "ledger.sqlite")
    other = {"model": "b" * 64, "low": "bf16", "seed": 0, "new": 1}
    said = refusal(tmp_path / "ledger.sqlite", other)
    assert "another model, --low was fp16, now bf16, --new was not given, now 1; run" in said


def test_another_schema_is_refused(tmp_path: Path) -> None:
    """A ledger of a later schema is refused with both numbers."""
    path = tmp_path / "ledger.sqlite"
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE header SET value = '5' WHERE key = 'schema'")
    connection.close()
    assert "schema 5, this version reads 4" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE header SET value = '{' WHERE key = 'fingerprint'",
        "UPDATE trials SET status = 'levitating'",
        "UPDATE trials SET verdict = NULL",
        "UPDATE trials SET plan = 'zz'",
    ],
)
def test_foreign_values_are_refused(tmp_path: Path, change: str) -> None:
    """Values that this version cannot read are an error of one line, not a traceback."""
    path = tmp_path / "ledger.sqlite"
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(RunFolderError, match="cannot read"):
        with_trials(path)


def with_trials(path: Path) -> None:
    """Open a ledger to go on and read its trials."""
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        ledger.trials()


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    """Text, a folder and somebody else's database are refused and left as they are."""
    text, folder, database = (tmp_path / name for name in ("text", "folder", "database"))
    text.write_text("no database at all, but long enough to be mistaken for one\n" * 20)
    folder.mkdir()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    assert "is no ledger" in refusal(text)
    assert "cannot use the ledger" in refusal(folder)
    assert "is no ledger" in refusal(database)
    with sqlite3.connect(database) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
    connection.close()
    assert tables == [("orders",)]


def test_a_truncated_ledger_is_refused(tmp_path: Path) -> None:
    """A file cut in the middle is reported, not read as if it were whole."""
    path = tmp_path / "ledger.sqlite"
    make_ledger.make(path)
    path.write_bytes(path.read_bytes()[:5000])
    assert "ledger" in refusal(path, make_ledger.FINGERPRINT)


def test_an_unwritable_folder_is_refused() -> None:
    """A folder without write permission is refused by name."""
    with unprivileged() as folder:
        folder.chmod(0o500)
        with pytest.raises(RunFolderError, match="Permission denied"):
            RunFolder(folder)
        assert "cannot use the ledger" in refusal(folder / "ledger.sqlite")


def test_a_read_only_ledger_is_refused() -> None:
    """A ledger that cannot be written is refused before any trial."""
    with unprivileged() as folder:
        path = folder / "ledger.sqlite"
        fill(path)
        path.chmod(0o400)
        folder.chmod(0o500)
        with pytest.raises(RunFolderError, match="cannot use the ledger"):
            fill(path, ended=False)


def test_orphans_are_what_began_and_did_not_end(tmp_path: Path) -> None:
    """A finished trial and a withdrawn one are none; the one that a process died of is."""
    ended, withdrawn, cut_off = (replace(PLAN, plan=Plan.of(kept)) for kept in ((1,), (2,), (3,)))
    path = tmp_path / "ledger.sqlite"
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        for proposal in (ended, withdrawn, cut_off):
            ledger.start(proposal)
        ledger.finish(ended, PASSED)
        ledger.withdraw(withdrawn)
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        assert {cut_off.identity} == ledger.orphans()


@pytest.mark.parametrize("phase", Phase)
def test_an_orphan_is_tried_again(tmp_path: Path, phase: Phase) -> None:
    """A start without an end is open again; only one of the search ever counts as crashed."""
    path = tmp_path / "ledger.sqlite"
    proposal = replace(PLAN, phase=phase)
    for _ in range(MOST_STARTS):
        with open_ledger(path, FINGERPRINT, resume=True) as ledger:
            assert ledger.trials() == []
            ledger.start(proposal)
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        statuses = [trial.outcome.status for trial in ledger.trials()]
    decisive = (Phase.PREFLIGHT, Phase.RANKING, Phase.PREDICTION, Phase.RECHECK)
    crashed = phase not in decisive
    assert statuses == ([TrialStatus.CRASHED] if crashed else [])


def test_a_withdrawn_start_does_not_count(tmp_path: Path) -> None:
    """Starts that were taken back, as on Ctrl-C, never make a trial a crashed one."""
    path = tmp_path / "ledger.sqlite"
    for _ in range(3):
        with open_ledger(path, FINGERPRINT, resume=True) as ledger:
            ledger.start(PLAN)
            ledger.withdraw(PLAN)
            assert ledger.trials() == []
    with open_ledger(path, FINGERPRINT, resume=True) as ledger:
        assert ledger.trials() == []


def test_the_intent_is_seen_by_others_before_the_trial_ends(tmp_path: Path) -> None:
    """A second connection reads what is committed while the ledger is open."""
    path = tmp_path / "ledger.sqlite"
    with open_ledger(path, FINGERPRINT, resume=False) as ledger:
        ledger.start(PLAN)
        reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        query = "SELECT status, attempts FROM trials"
        assert reader.execute(query).fetchall() == [(None, 1)]
        ledger.finish(PLAN, PASSED)
        assert reader.execute(query).fetchall() == [("finished", 1)]
        reader.close()


FILL_UP = """
import resource, sys
from pathlib import Path
from precision_bisect.errors import RunFolderError
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome, Proposal, TrialStatus

path = Path(sys.argv[1])
with open_ledger(path, {"model": "m"}, resume=True) as ledger:
    if int(sys.argv[2]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
    done = len(ledger.trials())
    try:
        for i in range(done, 200):
            proposal = Proposal(plan=Plan.of((i,)))
            ledger.start(proposal)
            ledger.finish(proposal, Outcome(status=TrialStatus.TIMED_OUT, message="m" * 2000))
    except RunFolderError as error:
        print(done, len(ledger.trials()), error.one_line())
    else:
        print(done, 200, "complete")
"""


def fill_up(path: Path, limit: int) -> tuple[int, int, str]:
    """Add trials in a process that may write so many bytes; return the counts and what it said."""
    command = [sys.executable, "-c", FILL_UP, str(path), str(limit)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    before, after, said = ended.stdout.split(maxsplit=2)
    return int(before), int(after), said.strip()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """When no more can be written the run ends with one line, and goes on once there is room."""
    path = tmp_path / "ledger.sqlite"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    before, kept, said = fill_up(path, 60_000)
    assert before == 0
    assert 0 < kept < 200
    assert said.startswith(f"cannot use the ledger {path}")
    assert "go on with --resume" in said
    assert fill_up(path, 0) == (kept, 200, "complete")


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """A ledger can be closed inside its own context."""
    with SqliteLedger(tmp_path / "ledger.sqlite") as ledger:
        ledger.close()
