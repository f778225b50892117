"""A run asks nothing of a network."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny

COMMAND = [sys.executable, "-m", "precision_bisect", "tiny.onnx", "--inputs", "inputs.npz"]
IN_CHILDREN = [*COMMAND, "--isolate", "always", "--out", "run"]


@pytest.mark.nightly
def test_a_run_without_a_network_ends_as_with_one(tmp_path: Path) -> None:
    """In a network namespace that has no interface up, trials in children included."""
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("may not make a network namespace")
    kept = []
    for number, before in enumerate(([], alone)):
        folder = tmp_path / str(number)
        folder.mkdir()
        tiny.write_with_samples(folder)
        subprocess.run([*before, *IN_CHILDREN], cwd=folder, check=True)
        kept.append(json.loads((folder / "run" / "result.json").read_text())["kept"])
    assert [tiny.KEPT, tiny.KEPT] == kept
