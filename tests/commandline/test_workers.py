"""Trials side by side from the command line: the same answer, and Ctrl-C that ends the run."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from effort import nightly
from patience import PATIENCE_S, wait_for
from precision_bisect.commandline.main import main

SLOW_CHECK = """
import pathlib, sys, threading, time

def error(outputs, reference):
    log = pathlib.Path(__file__).with_name("calls")
    with log.open("a") as calls:
        calls.write("x")
    if len(log.read_text()) > 3:
        # A trial that is only just being launched is not waited for.
        while not main_thread_waits():
            time.sleep(0.01)
        log.with_name("held").touch()
        time.sleep(600)
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)

def main_thread_waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code.co_name != "land":
        frame = frame.f_back
    return frame is not None
"""


def answer(folder: Path) -> dict[str, Any]:
    """Return the result without what depends on the clock."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    del found["wall_s"]
    return found


def search(model: Path, out: Path, *more: str) -> list[str]:
    """Return the arguments that search the small model on one sample."""
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, **tiny.samples()[0])  # type: ignore[arg-type]  # named arrays, no allow_pickle
    asked = ["--backend", "emulated", "--tol", "1e-2", "--inputs", inputs, "--out", out]
    return [str(part) for part in (model, *asked, *more)]


def test_workers_change_no_certified_answer(tmp_path: Path) -> None:
    """One worker and three keep the same layers of the small model, all of them certified."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    for workers in ("1", "3"):
        assert 0 == main(search(model, tmp_path / workers, "--workers", workers))
    one, three = (answer(tmp_path / workers) for workers in ("1", "3"))
    assert one["kept"] == three["kept"]
    assert one["certificate"]["minimal"] and three["certificate"]["minimal"]


def test_a_run_is_resumed_with_other_workers(tmp_path: Path) -> None:
    """What one worker has tried is known to three, and the other way round."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    out = tmp_path / "run"
    for workers, most in (("1", "4"), ("3", "6")):
        assert 3 == main(
            search(model, out, "--workers", workers, "--max-trials", most, "--resume")
        )
        assert int(most) == answer(out)["trials"]
    assert 0 == main(search(model, out, "--workers", "2", "--resume"))
    assert answer(out)["certificate"]["minimal"]


@pytest.mark.parametrize("number", [signal.SIGINT, *nightly(signal.SIGTERM)])
def test_a_second_interrupt_leaves_what_cannot_be_stopped(
    tmp_path: Path, number: signal.Signals
) -> None:
    """While checks sleep for a minute, two signals end the run at once, without an answer."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    check = tmp_path / "slow.py"
    check.write_text(SLOW_CHECK)
    out = tmp_path / "run"
    asked = search(model, out, "--workers", "2", "--check", f"{check}:error")
    command = [sys.executable, "-m", "precision_bisect", *asked]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        wait_for(child, (tmp_path / "held").exists)
        child.send_signal(number)
        assert child.stderr is not None
        said = ""
        while "waiting for" not in said:
            line = child.stderr.readline()
            assert line, f"{child.wait()}: {said}"
            said += line
        child.send_signal(number)
        child.stderr.read()
        assert 130 == child.wait(timeout=PATIENCE_S)
    result = answer(out)
    assert ("interrupted", False) == (result["status"], result["certificate"]["minimal"])
    assert ([], []) == (result["kept"], result["rungs"])
