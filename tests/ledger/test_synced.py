"""When the ledger waits for the disk."""

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precision_bisect.plan import Plan
from precision_bisect.runs.ledger import store
from precision_bisect.runs.ledger.store import SqliteLedger, open_ledger
from precision_bisect.trial import Kind, Proposal

_OPENED: list[sqlite3.Connection] = []


def _audit(name: str, arguments: tuple[Any, ...]) -> None:
    """Take down connections; a hook cannot be removed, so there is one."""
    if name == "sqlite3.connect/handle":
        _OPENED[:] = arguments


sys.addaudithook(_audit)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    """Yield a new ledger."""
    with open_ledger(tmp_path / "ledger.sqlite", {}, resume=False) as ledger:
        yield ledger


def starts(ledger: SqliteLedger, *kinds: Kind) -> list[bool]:
    """Start a trial of each kind, and tell which waited for the disk."""
    said: list[str] = []
    _OPENED[0].set_trace_callback(said.append)
    for number, kind in enumerate(kinds):
        ledger.start(Proposal(plan=Plan.of((number,)), kind=kind))
    return ["FULL" in each for each in said if each.startswith("PRAGMA synchronous")]


def test_the_disk_is_waited_for_before_a_build(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions do not wait, and so do not stand in for a build that comes after them."""
    monkeypatch.setattr(store, "SYNC_S", 0.0)
    kinds = [Kind.PREDICT, Kind.PREDICT, Kind.JUDGE, Kind.PREDICT, Kind.REBUILD]
    assert [False, False, True, False, True] == starts(ledger, *kinds)


def test_quick_trials_do_not_wait_each_time(ledger: SqliteLedger) -> None:
    """Of many within a second the first one does."""
    assert [True, False, False, False] == starts(ledger, *[Kind.JUDGE] * 4)
