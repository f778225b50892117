"""A search killed anywhere goes on where it was: nothing lost, nothing twice, the same answer."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tiny

KILLS = (1, 5, 6, 7, 12, 8, 9, 5, 10, 6, 4, 8, 7, 6, 10, 6)
"""At which of its own events each process dies. A trial has three (started, evaluated, finished),
on copies more. So all but the first outlive the trial that they begin with, and no trial is killed
twice."""


ALL_HIGH = "fffff"
HERE = Path(__file__).parents[1]


def run(folder: Path, model: Path, kill_at: int) -> int:
    """Search in a process of its own and return how it ended."""
    words = [str(each) for each in (model, folder / "run", folder / "log", kill_at)]
    return subprocess.run([sys.executable, "-m", "tiny", *words], cwd=HERE).returncode


def answer(folder: Path) -> dict[str, Any]:
    """Return the result without what depends on the clock."""
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    del found["wall_s"]
    return found


def lines(folder: Path) -> list[tuple[str, str, bool]]:
    """Return what the processes noted: what, of which trial, and whether they died of it."""
    noted = (line.split() for line in (folder / "log").read_text().splitlines())
    return [(what, key, bool(killed)) for what, key, *killed in noted]


def test_a_search_killed_many_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """SIGKILL at 16 points, between intent and verdict too, changes neither answer nor trials."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    assert run(whole, model, 0) == 0
    assert [run(broken, model, kill_at) for kill_at in KILLS] == [-9] * len(KILLS)
    assert run(broken, model, 0) == 0

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


def test_a_trial_that_kills_each_time_counts_as_crashed(tmp_path: Path) -> None:
    """A plan that ends the process three times is not tried again, and the search ends."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    assert [run(tmp_path, model, kill_at) for kill_at in (94, 1, 1, 0)] == [-9, -9, -9, 0]
    noted = lines(tmp_path)
    (fatal,) = {key for what, key, killed in noted if killed and what == "started"}
    assert Counter(key for what, key, _ in noted if what == "started")[fatal] == 3
    assert (answer(tmp_path)["status"], answer(tmp_path)["kept"]) == ("found", tiny.KEPT)
