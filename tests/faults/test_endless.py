"""Inference that does not come back: limits and signals end the run all the same.

ONNX Runtime's `run` is replaced by one that waits until it is told to end, as a run does that is
told so between two nodes; the model is an ordinary one.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from effort import nightly
from models import load_text
from patience import PATIENCE_S

WAITING = """
import time

import onnxruntime

Session = onnxruntime.InferenceSession
run, run_with_iobinding = Session.run, Session.run_with_iobinding


def wait(arrays, options):
    while {condition}:
        if options is not None and options.terminate:
            raise RuntimeError("told to end")
        time.sleep(0.01)


def waiting_run(session, names, feed, options=None):
    arrays = run(session, names, feed, options)
    wait(arrays, options)
    return arrays


def waiting_run_with_iobinding(session, binding, options=None):
    run_with_iobinding(session, binding, options)
    wait([value.numpy() for value in binding.get_outputs()], options)


Session.run, Session.run_with_iobinding = waiting_run, waiting_run_with_iobinding
"""
ROUNDED = "any(array.size and not array.any() for array in arrays)"


def stand_in(folder: Path, *, after_rounding: bool = False) -> Path:
    """Write a model, a sample, and a stand-in for inference that does not come back.

    It does not `after_rounding`, where `x + 1e-4 - x` has become 0, else never.
    """
    text = "(float[1, 8] x) => (float[1, 8] y) <float[1] small = {0.0001}>"
    text += " { [add] moved = Add(x, small) [sub] y = Sub(moved, x) }"
    model = load_text(text, folder).path
    np.savez(folder / "x.npz", x=np.ones((1, 8), np.float32))
    condition = ROUNDED if after_rounding else "True"
    (folder / "sitecustomize.py").write_text(WAITING.replace("{condition}", condition))
    return model


def begin(model: Path, *flags: str) -> "subprocess.Popen[str]":
    """Begin a search."""
    folder = model.parent
    command = [sys.executable, "-m", "precision_bisect", str(model), "--threads", "1"]
    command += ["--inputs", str(folder / "x.npz"), "--out", str(folder / "run"), "--tol", "1e-6"]
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [*command, *flags],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize(("limit", "code"), [("--max-time", 3), *nightly(("--trial-timeout", 2))])
def test_limits_end_an_endless_reference(limit: str, code: int, tmp_path: Path) -> None:
    """The reference ends: the run's time with a result, that of an inference in one line."""
    with begin(stand_in(tmp_path), limit, "1") as run:
        shown, said = run.communicate(timeout=PATIENCE_S)
    assert code == run.returncode
    assert limit in (shown if code == 3 else said.splitlines()[-1])
    assert (code == 3) == (tmp_path / "run" / "result.json").exists()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-time", "4"),
        pytest.param(("--trial-timeout", "2", "--max-trials", "5"), marks=pytest.mark.nightly),
    ],
)
def test_limits_end_a_trial_that_rounding_makes_endless(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The reference ends, the plan with every layer low does not: the run has a result."""
    with begin(stand_in(tmp_path, after_rounding=True), *flags) as run:
        _, said = run.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said
    assert run.returncode in (0, 1, 3)
    assert (tmp_path / "run" / "result.json").exists()
