"""The benchmark of long runs, on a few trials of a small model."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import overnight
import pytest
from overnight_figures import Figures, Sizes

import tiny
from precision_bisect.settings.worker_options import Isolate


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("isolate", "children_mib"), [("never", range(40)), ("always", range(60, 1000))]
)
def test_trials_are_timed_where_they_are_evaluated(
    tmp_path: Path, isolate: Isolate, children_mib: range
) -> None:
    """Evaluations take a part of the time; there is a child where that is asked."""
    model, trials = tiny.write_model(tmp_path / "tiny.onnx"), overnight.WARM + 5
    asked = ["--trials", trials, "--inputs", 1, "--isolate", isolate]
    command = [sys.executable, overnight.__file__, model, *asked]
    said = subprocess.run(list(map(str, command)), check=True, capture_output=True).stdout
    found = json.loads(said)
    assert (isolate, trials, 1) == (found["isolate"], found["trials"], found["inputs"])
    assert 0 < found["evaluated_s"] <= found["asked_s"] < found["wall_s"]
    assert found["end"]["files"] <= found["warm"]["files"]
    assert int(found["end"]["children_mib"]) in children_mib


def test_what_is_too_much_is_said() -> None:
    """Overhead, memory of either process, files and threads each count."""
    small = Sizes(driver_mib=100.0, children_mib=100.0, files=9, threads=3)
    good = Figures(
        isolate="never",
        trials=1000,
        inputs=1,
        wall_s=41.0,
        asked_s=40.0,
        evaluated_s=40.0,
        warm=small,
        end=replace(small, driver_mib=109.0),
        load=(0.0, 0.0),
    )
    assert good.within
    assert 0.025 == pytest.approx(good.overhead)
    for end in (
        replace(small, driver_mib=111.0),
        replace(small, children_mib=111.0),
        replace(small, files=10),
        replace(small, threads=4),
    ):
        assert not replace(good, end=end).within
    assert not replace(good, wall_s=41.3).within


def test_random_plans_are_all_different() -> None:
    """And the same each time."""
    plans = [[p.plan for (p,) in overnight.random_plans(300, 1000)] for _ in range(2)]
    assert 1000 == len(set(plans[0]))
    assert plans[0] == plans[1]
