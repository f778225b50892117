"""Models whose inference does not end: limits and signals end the run all the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from effort import nightly

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def loop(path: Path, *, after_rounding: bool = False) -> Path:
    """Write a Loop of 2**62 trips; if so, one that ends at once unless `x + 1e-4` is rounded."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Sin", ["v"], ["v_out"]),
        ],
        "body",
        [scalar("i", INT64, []), scalar("go", BOOL, []), scalar("v", FLOAT, [1, 8])],
        [scalar("go_on", BOOL, []), scalar("v_out", FLOAT, [1, 8])],
    )
    begin = [
        helper.make_node("Add", ["x", "small"], ["moved"], name="add"),
        helper.make_node("Sub", ["moved", "x"], ["gap"], name="sub"),
        helper.make_node("ReduceMax", ["gap"], ["widest"], name="widest", keepdims=0),
        helper.make_node("Less", ["widest", "limit"], ["less"], name="less"),
    ]
    nodes = [
        *(begin if after_rounding else ()),
        helper.make_node("Loop", ["trips", "less", "x"], ["l"], name="loop", body=body),
        helper.make_node("Mul", ["l", "l"], ["y"], name="square"),
    ]
    constants = [numpy_helper.from_array(np.array(2**62, np.int64), "trips")]
    if after_rounding:
        constants += [numpy_helper.from_array(np.array(1e-4, np.float32), "small")]
        constants += [numpy_helper.from_array(np.array(5e-5, np.float32), "limit")]
    else:
        constants += [numpy_helper.from_array(np.array(True), "less")]
    ends = [scalar(name, FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "endless", ends[:1], ends[1:], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    np.savez(path.with_suffix(".npz"), x=np.ones((1, 8), np.float32))
    return path


def begin(model: Path, *flags: str) -> "subprocess.Popen[str]":
    """Begin a search."""
    command = [sys.executable, "-m", "precision_bisect", str(model), "--threads", "1"]
    command += ["--inputs", str(model.with_suffix(".npz")), "--out", str(model.parent / "run")]
    return subprocess.Popen(
        [*command, *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


@pytest.mark.parametrize("limit", ["--max-time", *nightly("--trial-timeout")])
def test_limits_end_an_endless_reference(limit: str, tmp_path: Path) -> None:
    """The reference runs in this process, and ends in one line all the same."""
    with begin(loop(tmp_path / "endless.onnx"), limit, "1") as run:
        _, said = run.communicate(timeout=60)
    assert 2 == run.returncode
    assert limit in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.nightly
def test_sigterm_ends_an_endless_reference(tmp_path: Path) -> None:
    """One SIGTERM is enough, before the search begins."""
    with begin(loop(tmp_path / "endless.onnx")) as run:
        time.sleep(6)
        run.terminate()
        _, said = run.communicate(timeout=30)
    assert 130 == run.returncode
    assert "interrupted before the search began" in said


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
    with begin(loop(tmp_path / "endless.onnx", after_rounding=True), *flags) as run:
        _, said = run.communicate(timeout=120)
    assert "Traceback" not in said
    assert run.returncode in (0, 1, 3)
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_trial_that_rounding_makes_endless(number: int, tmp_path: Path) -> None:
    """The first signal ends the trial, and the result says that the run was interrupted."""
    with begin(loop(tmp_path / "endless.onnx", after_rounding=True)) as run:
        while not (tmp_path / "run" / "events.jsonl").exists():
            time.sleep(0.2)
        time.sleep(3)
        os.kill(run.pid, number)
        _, said = run.communicate(timeout=60)
    assert 130 == run.returncode, said
    assert "interrupted" == json.loads((tmp_path / "run" / "result.json").read_text())["status"]
