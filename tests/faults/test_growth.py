"""Drivers killed whenever their ledger has grown by so much: no clock and no event decides."""

import os
import random
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from fleet import Fleet, Search, fleet
from patience import wait_until

KILLS = 20
MOST = 24
"""Intents and verdicts which a ledger grows by before a kill; a whole run has some 250."""
SEED = int(os.environ.get("SEED", "30"))

ModeOf = dict[str, Sequence[object]]


def size(run: Path) -> int:
    """Return how many intents and verdicts a run's ledger holds."""
    path = run / "ledger.sqlite"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as ledger:
            return int(ledger.execute("SELECT count(*) + count(status) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def ended(run: Path) -> set[tuple[object, ...]]:
    """Return the trials of a ledger that have ended, with their verdicts and errors."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        asked = "SELECT plan, samples, kind, draw, case_name, status, verdict, error FROM trials"
        return set(ledger.execute(f"{asked} WHERE status IS NOT NULL"))


def killed(search: Search, growth: int, *more: object) -> int:
    """Kill a driver when the ledger has grown by so much; return how it ended."""
    before = size(search.out)
    with search.running("--resume", *more) as driver:
        wait_until(lambda: size(search.out) >= before + growth or driver.poll() is not None)
        driver.kill()
        driver.communicate()
        return driver.returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """Return a search that nobody disturbed."""
    search = Search(tmp_path_factory.mktemp("whole") / "search")
    search.let_go()
    assert 0 == search.run("--isolate", "never")[0]
    return search


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yield a scheduler with two workers."""
    with fleet(tmp_path_factory.mktemp("pair") / "pair", ["a", "b"]) as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["alone", "children", "cluster"])
def test_kills_on_growth_lose_and_change_nothing(
    mode: str, whole: Search, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """No verdict is lost or another after any kill, and the answer is that of a whole run."""
    modes: ModeOf = {"alone": ["--isolate", "never"], "children": ["--isolate", "always"]}
    if mode == "cluster":
        modes[mode] = ["--workers", 2, "--cluster", request.getfixturevalue("pair").address]
    search, draw = Search(tmp_path / "search"), random.Random(SEED)
    search.let_go()
    known: set[tuple[object, ...]] = set()
    for _ in range(KILLS):
        code = killed(search, draw.randint(1, MOST), *modes[mode])
        # Of many kills the last ones find the run at its end.
        assert -signal.SIGKILL == code or (code == 0 and size(search.out) == size(whole.out))
        now = ended(search.out)
        assert known <= now
        known = now
    assert 0 == search.run("--resume", *modes[mode])[0]
    assert known <= ended(search.out) == ended(whole.out)
    assert whole.answer()["kept"] == search.answer()["kept"]
