"""Inputs and outputs without dimensions stay arrays on every way through a run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_bisect
import rank_zero
from effort import nightly
from models import parse, save
from patience import PATIENCE_S
from precision_bisect.commandline.main import main
from precision_bisect.exports.fitting_files import stored_samples
from precision_bisect.graphs.lowtypes import FP16
from precision_bisect.judging.inputs.copies import Copies, moved
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.trial import SampleSet

CHECK = """
import numpy

def error(outputs, reference):
    for sample in (*outputs, *reference):
        assert {"y": (1, 8), "peak": (), "place": ()} == {
            name: array.shape for name, array in sample.items() if type(array) is numpy.ndarray
        }
        sample["peak"][...] = 0
    return max(float(abs(o["y"] - r["y"]).max()) for o, r in zip(outputs, reference))
"""


def search(folder: Path, **options: Any) -> precision_bisect.Result:
    """Search the model on samples in the folder `run`, unless the options say otherwise."""
    asked = {"inputs": rank_zero.samples(), "out": folder / "run", "threads": 1, **options}
    return precision_bisect.find(rank_zero.write_model(folder), **asked)


@pytest.mark.parametrize(
    "options",
    [
        {"holdout": 2},
        {"check": "check.py:error", "tol": 1e-2, "copies": 2, "isolate": "always"},
        {"tol": {"y": 1e-2, "peak": 2e-2, "place": 0.5}},
        *nightly(
            {"metric": "cosine", "tol": 1e-2},
            {"fuse_norms": False, "strategy": "ddmin", "workers": 2},
        ),
    ],
    ids=str,
)
def test_the_layers_that_overflow_are_found(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever judges, and wherever, the answer is the square and its root."""
    (tmp_path / "check.py").write_text(CHECK)
    monkeypatch.chdir(tmp_path)
    assert rank_zero.KEPT == list(search(tmp_path, **options).kept)


def test_made_up_inputs_have_no_dimensions_either(tmp_path: Path) -> None:
    """A search on inputs that are made up ends with an answer, that held-out ones have judged."""
    found = search(tmp_path, inputs=None, holdout=1)
    assert found.status in ("found", "nothing_to_keep")
    assert found.unseen is not None and 1 == found.unseen.judged


def test_callers_may_give_numbers_of_numpy(tmp_path: Path) -> None:
    """What has a type and no dimensions is taken for an array of that type."""
    given = [
        {"x": each["x"], "scale": each["scale"][()], "count": each["count"][()]}
        for each in rank_zero.samples()
    ]
    assert rank_zero.KEPT == list(search(tmp_path, inputs=given).kept)


@pytest.mark.parametrize("value", [2.0, 2.37])
def test_copies_are_arrays_of_the_same_type(value: float) -> None:
    """That holds for values that the low type has exactly, and for those that it does not."""
    feeds = [{"scale": np.array(value, np.float32), "count": np.array(3)}]
    sets = {SampleSet.JUDGED: (feeds, feeds)}
    ((copy,), _) = Copies(samples=sets, count=1, refer=dict, half=FP16).make(
        SampleSet.JUDGED, 1, 0
    )
    assert {"scale": (np.ndarray, (), "float32"), "count": (np.ndarray, (), "int64")} == {
        name: (type(array), array.shape, array.dtype.name) for name, array in copy.items()
    }
    assert value != copy["scale"]
    assert isinstance(moved(feeds[0]["scale"], np.random.default_rng(0), 1e-5), np.ndarray)


def test_all_that_is_prepared_are_arrays(tmp_path: Path) -> None:
    """Samples, reference, and what the emulator computes, as one plan and in segments."""
    given = Options(
        model=rank_zero.write_model(tmp_path), inputs=rank_zero.samples(), out=tmp_path / "run"
    )
    prepared = prepare(given, ignore, tmp_path)
    assert prepared.here is not None
    with prepared.here.build(prepared.problem.beyond_range() or pytest.fail()) as engine:
        computed = [engine.run(sample) for sample in prepared.case.samples]
    arrays = [
        array
        for sample in (*prepared.case.samples, *prepared.case.reference, *computed)
        for array in sample.values()
    ]
    assert {np.ndarray} == {type(array) for array in arrays}
    assert {(), (1, 8)} == {array.shape for array in arrays}


@pytest.mark.parametrize("types", ["model", "fp16"])
def test_exports_hold_and_judge_them(types: str, tmp_path: Path) -> None:
    """Stored samples keep their shapes, a fresh process reads them, and the script judges each."""
    model, run, out = rank_zero.write_model(tmp_path), tmp_path / "run", tmp_path / "out"
    inputs = rank_zero.write_samples(tmp_path / "inputs", rank_zero.samples())
    asked = ["--inputs", str(inputs), "--out", str(run), "--io-types", types]
    assert 0 == main([str(model), *asked])
    told = json.loads((run / "result.json").read_text())["deployment"]["recheck"]
    assert told["message"].startswith(
        "model.mixed.onnx opens and runs in a fresh process, and fits 4 "
    )
    wanted = [str(model), "--plan", str(run), "--out", str(out)]
    assert 0 == main(["export", *wanted])
    feeds, outputs = stored_samples(out)
    shapes = [array.shape for array in (*feeds[0].values(), *outputs[0].values())]
    assert [(1, 8), (), ()] * 2 == shapes
    script = [sys.executable, str(out / "run_onnxruntime.py"), "--provider", "cpu"]
    said = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert ["y", "peak", "place"] == [
        line.split()[1].rstrip(":") for line in said.splitlines() if line.startswith("pass")
    ]


def _run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


@pytest.mark.parametrize(
    "command",
    [
        lambda model, inputs: _run("curve", model, "--inputs", inputs, "--out", "curve"),
        lambda model, inputs: _run("explain", model, "--inputs", inputs),
        lambda model, inputs: _run("run", model, "--inputs", inputs, "--ladder", "bf16,fp16,fp32"),
        lambda model, inputs: _run("run", model, "--inputs", inputs, "--reference", "outputs"),
        pytest.param(lambda _, __: _run("batch", "jobs.toml"), marks=pytest.mark.nightly),
    ],
    ids=["curve", "explain", "ladder", "reference", "batch"],
)
def test_every_command_takes_them(
    command: Callable[[Path, Path], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command that runs the model fails for a value without dimensions."""
    monkeypatch.chdir(tmp_path)
    model = rank_zero.write_model(tmp_path)
    inputs = rank_zero.write_samples(tmp_path / "inputs", rank_zero.samples())
    prepared = prepare(Options(model=model, inputs=inputs), ignore, tmp_path)
    rank_zero.write_samples(tmp_path / "outputs", prepared.case.reference)
    (tmp_path / "jobs.toml").write_text(f'[[job]]\nmodel = "{model}"\ninputs = "inputs"\n')
    assert 0 == command(model, inputs)


def test_a_copy_that_does_not_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where an index that is computed from a float leaves its table, the way out is said."""
    body = """(float scale) => (float y) <float[3] table = {1, 2, 3}, float most = {3}> {
      large = Mul(scale, most) i = Cast<to = 7>(large) v = Gather<axis = 0>(table, i)
      p = Mul(v, v) y = Mul(p, scale) }"""
    model = save(parse(body), tmp_path, "index.onnx")
    # The largest FP32 below 1: three times that is below 3, and copies reach 3.
    np.savez(tmp_path / "in.npz", scale=np.nextafter(np.float32(1), np.float32(0)))
    given = ["--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "run"), "--tol", "1e-6"]
    assert 2 == main([str(model), *given])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("precision-bisect: FP32 does not run on a copy of the samples")
    assert last.endswith("judge on the samples alone by --copies 0")
    assert main([str(model), *given, "--copies", "0", "--overwrite"]) in (0, 1)
