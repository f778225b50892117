"""ONNX Runtime talks to nobody, and leaves nothing in the folder for temporary files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows what is connected to")
def test_nobody_is_talked_to(tmp_path: Path) -> None:
    """A run, its children and the re-check open no socket of the internet, and leave no file."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    calls = tmp_path / "calls"
    model = tiny.write_with_samples(tmp_path)
    environment = {key: text for key, text in os.environ.items() if not key.startswith("ORT_")}
    command = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-e",
        "trace=socket,connect,sendto",
        "-o",
        str(calls),
    ]
    command += [sys.executable, "-m", "precision_bisect", str(model), "--threads", "1"]
    command += ["--inputs", str(tmp_path / "inputs.npz"), "--out", str(tmp_path / "run")]
    ran = subprocess.run(
        [*command, "--isolate", "always"],
        env={**environment, "TMPDIR": str(temporary)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert 0 == ran.returncode, ran.stderr
    assert "AF_INET" not in calls.read_text()
    assert [] == list(temporary.iterdir())
