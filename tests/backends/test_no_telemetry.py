"""ONNX Runtime talks to nobody, and leaves nothing in the folder for temporary files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny


def search(folder: Path, *before: str) -> "subprocess.CompletedProcess[str]":
    """Search the small model in a process of its own, with a TMPDIR of its own."""
    temporary = folder / "tmp"
    temporary.mkdir()
    model = tiny.write_with_samples(folder)
    environment = {key: text for key, text in os.environ.items() if not key.startswith("ORT_")}
    command = [*before, sys.executable, "-m", "precision_bisect", str(model), "--threads", "1"]
    command += ["--inputs", str(folder / "inputs.npz"), "--out", str(folder / "run")]
    return subprocess.run(
        command,
        env={**environment, "TMPDIR": str(temporary)},
        check=False,
        capture_output=True,
        text=True,
    )


def test_nothing_is_left_in_tmpdir(tmp_path: Path) -> None:
    """Neither the session file of the telemetry nor a folder of ours, after run and re-check."""
    assert 0 == search(tmp_path).returncode
    assert [] == list((tmp_path / "tmp").iterdir())


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows what is connected to")
def test_no_socket_is_connected(tmp_path: Path) -> None:
    """A run, the processes that it starts included, connects to no address."""
    calls = tmp_path / "calls"
    trace = ("strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", str(calls))
    assert 0 == search(tmp_path, *trace).returncode
    assert [] == [line for line in calls.read_text().splitlines() if "AF_INET" in line]
