"""SQLite keeps the contract of ledgers, and the contract finds what forgets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precision_bisect.runs.ledger.store import SqliteLedger, open_ledger
from precision_bisect.testing.driving import ContractError
from precision_bisect.testing.ledger_contract import check_ledger


def test_sqlite_keeps_the_contract(tmp_path: Path) -> None:
    """Trials are remembered over openings, and finished ones stay."""
    check_ledger(lambda: open_ledger(tmp_path / "ledger.sqlite", {"model": "m"}, resume=True))


def test_a_ledger_that_forgets_is_found_out(tmp_path: Path) -> None:
    """Each opening is another file here."""
    numbers = iter(range(9))

    @contextmanager
    def forgetful() -> Iterator[SqliteLedger]:
        path = tmp_path / f"{next(numbers)}.sqlite"
        with open_ledger(path, {"model": "m"}, resume=True) as ledger:
            yield ledger

    with pytest.raises(ContractError, match="do not come back"):
        check_ledger(forgetful)
