"""A search killed anywhere goes on where it was: nothing lost, nothing twice, the same answer."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from lives import Live, lives

KILLS = (1, 5, 6, 7, 12, 8, 9, 5, 10, 6, 4, 8, 7, 6, 10, 6)
"""At which of its own events each process dies. A trial has three (started, evaluated, finished),
on copies more. So all but the first outlive the trial that they begin with, and no trial is killed
twice."""


ALL_HIGH = "fffff"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Yield what searches in a process of its own."""
    with lives("tiny") as live:
        yield live


def run(live: Live, folder: Path, model: Path, kill_at: int, workers: int = 1) -> int:
    """Search in a process of its own and return how it ended."""
    return live(model, folder / "run", folder / "log", kill_at, workers)


def answer(folder: Path) -> dict[str, Any]:
    """Return the result without what depends on the clock."""
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    del found["wall_s"]
    return found


def lines(folder: Path) -> list[tuple[str, str, bool]]:
    """Return what the processes noted: what, of which trial, and whether they died of it."""
    noted = (line.split() for line in (folder / "log").read_text().splitlines())
    return [(what, key, bool(killed)) for what, key, *killed in noted]


def test_a_search_killed_many_times_loses_and_repeats_nothing(tmp_path: Path, live: Live) -> None:
    """SIGKILL at 16 points, between intent and verdict too, changes neither answer nor trials."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    assert run(live, whole, model, 0) == 0
    assert [run(live, broken, model, kill_at) for kill_at in KILLS] == [-9] * len(KILLS)
    assert run(live, broken, model, 0) == 0

    assert answer(broken) == answer(whole)
    assert answer(broken)["kept"] == tiny.KEPT

    noted = lines(broken)
    died = Counter(what for what, _, killed in noted if killed)
    assert min(died[what] for what in ("started", "evaluated", "finished")) >= 3
    finished = [key for what, key, _ in noted if what == "finished"]
    assert sorted(finished) == sorted(key for what, key, _ in lines(whole) if what == "finished")
    evaluated = Counter(key for what, key, _ in noted if what == "evaluated")
    evaluated -= Counter(key for what, key, _ in lines(whole) if what == "evaluated")
    # A process that begins with the repeat of a plan has to run the plan again, to compare.
    assert evaluated.total() == died["evaluated"] + 1
    assert evaluated[ALL_HIGH] >= 1


def test_a_trial_that_kills_each_time_counts_as_crashed(tmp_path: Path, live: Live) -> None:
    """A plan that ends the process three times is not tried again, and the search ends."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    assert [run(live, tmp_path, model, kill_at) for kill_at in (94, 1, 1, 0)] == [-9, -9, -9, 0]
    noted = lines(tmp_path)
    (fatal,) = {key for what, key, killed in noted if killed and what == "started"}
    assert Counter(key for what, key, _ in noted if what == "started")[fatal] == 3
    assert (answer(tmp_path)["status"], answer(tmp_path)["kept"]) == ("found", tiny.KEPT)


@pytest.mark.nightly
def test_trials_side_by_side_that_are_killed_lose_only_themselves(
    tmp_path: Path, live: Live
) -> None:
    """Three workers, killed six times: nothing that ended is tried again, nothing is blamed."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    kills = (9, 14, 11, 16, 13, 12)
    assert [run(live, tmp_path, model, kill_at, 3) for kill_at in kills] == [-9] * len(kills)
    assert run(live, tmp_path, model, 0, 3) == 0

    noted = lines(tmp_path)
    finished = Counter(key for what, key, _ in noted if what == "finished")
    assert set(finished.values()) == {1}
    started = Counter(key for what, key, _ in noted if what == "started")
    # Each kill cuts off three trials at most, which are started again.
    assert started.total() <= finished.total() + 3 * len(kills)
    ends = [i for i, (_, _, killed) in enumerate(noted) if killed]
    for end in ends:
        done = {key for what, key, _ in noted[:end] if what == "finished"}
        assert done.isdisjoint(key for what, key, _ in noted[end + 1 :] if what == "started")
    found = answer(tmp_path)
    assert (found["status"], found["kept"], found["unresolved"]) == ("found", tiny.KEPT, {})
    assert found["certificate"]["minimal"]
