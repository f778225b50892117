"""The benchmark of long runs, on a few trials of a small model."""

import json
import subprocess
import sys
from pathlib import Path

import overnight
import pytest

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
