"""A run whose terminal goes away."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from patience import PATIENCE_S

HELD = """
import pathlib, time
import numpy as np
def judge(outputs, reference):
    here = pathlib.Path(__file__).parent
    while (here / "run" / "ledger.sqlite").exists() and not (here / "gone").exists():
        time.sleep(0.01)
    return max(np.abs(a[k] - b[k]).max() for a, b in zip(outputs, reference) for k in a)
"""
HANGS = """
import signal, time
from precision_bisect.machine import interrupts
interrupts._LONGEST_S = 0.1
signal.raise_signal(signal.SIGINT)
time.sleep(600)
"""


def test_a_closed_terminal_costs_nothing(tmp_path: Path) -> None:
    """The search goes on without it to the same end, and the exit code is its own."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    for number, sample in enumerate(tiny.samples()):
        np.savez(tmp_path / f"{number}.npz", **sample)  # type: ignore[arg-type]
    (tmp_path / "held.py").write_text(HELD)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "precision_bisect", str(model), "--inputs", str(tmp_path)]
    command += ["--check", f"{tmp_path / 'held.py'}:judge", "--tol", "1e-2", "--threads", "1"]
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*command, "--out", str(run)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    os.close(theirs)
    shown = b""
    while b"Preflight" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    os.kill(process.pid, signal.SIGHUP)
    (tmp_path / "gone").touch()
    assert 0 == process.wait(PATIENCE_S)
    assert "found" == json.loads((run / "result.json").read_text())["status"]


@pytest.mark.usefixtures("cold")
def test_ctrl_c_while_it_is_imported_is_one_line(tmp_path: Path) -> None:
    """It meets the first module that the command line needs, which goes on for too long."""
    (tmp_path / "argparse.py").write_text(HANGS)
    command = [sys.executable, "-m", "precision_bisect", "layers", "model.onnx"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, check=False, capture_output=True, env=environment, timeout=PATIENCE_S
    )
    assert (130, b"precision-bisect: interrupted\n") == (done.returncode, done.stderr)
