"""A run asks nothing of a network."""

import json
import os
import shutil
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


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_process_of_a_run_connects_anywhere(tmp_path: Path) -> None:
    """No process of it opens a socket of the internet; nothing stays in TMPDIR."""
    tiny.write_with_samples(tmp_path)
    (tmp_path / "temp").mkdir()
    trace = ["strace", "-f", "-qq", "-o", "calls", "-e", "trace=socket,connect,sendto"]
    ran = subprocess.run(
        [*trace, *IN_CHILDREN],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "temp")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert 0 == ran.returncode, ran.stderr
    calls = (tmp_path / "calls").read_text()
    assert "AF_INET" not in calls
    assert [] == list((tmp_path / "temp").iterdir())
