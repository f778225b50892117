"""Reading a ledger leaves it, and its folder, as they are."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import run_folders
from precision_bisect.errors import RunFolderError
from precision_bisect.runs.ledger.ledger_reader import Header, read_ledger
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.runfolder import LEDGER

TRIALS = run_folders.searched(12, [1, 9])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Header and trials come back, and no file is made or changed."""
    run_folders.write_ledger(tmp_path, TRIALS)
    before = (tmp_path / LEDGER).read_bytes()
    found = read_ledger(tmp_path / LEDGER)
    assert TRIALS == found.trials
    assert Header(fingerprint=run_folders.FINGERPRINT) == found.header
    assert before == (tmp_path / LEDGER).read_bytes()


def test_a_writer_goes_on_while_it_is_read(tmp_path: Path) -> None:
    """Between two trials of an open ledger the first is seen, and the second is recorded."""
    path = tmp_path / LEDGER
    with open_ledger(path, run_folders.FINGERPRINT, resume=False) as ledger:
        for count, each in enumerate(TRIALS[:3]):
            assert TRIALS[:count] == read_ledger(path).trials
            ledger.start(each.proposal)
            assert TRIALS[:count] == read_ledger(path).trials
            ledger.finish(each.proposal, each.outcome)
    assert TRIALS[:3] == read_ledger(path).trials


@pytest.mark.parametrize("contents", [None, b"", b"no database", b"SQLite format 3\0" + b"x" * 99])
def test_what_is_no_ledger_is_one_line(tmp_path: Path, contents: bytes | None) -> None:
    """A missing, empty or foreign file is named, and not made."""
    path = tmp_path / LEDGER
    if contents is not None:
        path.write_bytes(contents)
    said = {None: f"has no {LEDGER}, and so no trial", b"": "is empty, and so has no trial"}
    with pytest.raises(RunFolderError, match=said.get(contents, "no ledger that this version")):
        read_ledger(path)
    assert path.exists() == (contents is not None)


def test_another_version_and_damage_are_told_apart(tmp_path: Path) -> None:
    """A ledger of another schema is not read; one that is cut off is not worth a resume."""
    path = tmp_path / LEDGER
    with open_ledger(path, run_folders.FINGERPRINT, resume=False) as ledger:
        for each in TRIALS:
            ledger.start(each.proposal)
            ledger.finish(each.proposal, each.outcome)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE header SET value = '99' WHERE key = 'schema'")
    with pytest.raises(RunFolderError, match="has schema 99, this version reads 4"):
        read_ledger(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RunFolderError, match=r"is damaged.*choose another --out"):
        open_ledger(path, run_folders.FINGERPRINT, resume=True)
