"""What a run has cost is what it tells, and a run that has ended costs nothing again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ladder_model
import tiny
from effort import nightly
from models import parse, save
from norm_spellings import large, layer_norm
from precision_bisect.api import find
from precision_bisect.backends.emulation.emulator import EmulatedBackend, EmulatedEngine
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.ledger.ledger_reader import recorded_trials
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import Phase
from reported_models import stretched

MEAN = """(float[8,512] x) => (float[8,1] y) <float small = {1e-3}> {
  [mean] m = ReduceMean<axes = [-1]>(x) [scaled] s = Mul(m, small) [last] y = Neg(s) }"""
"""A sum that ONNX Runtime on CUDA stores in FP16, where it overflows."""
ANGLE = (
    "(float t, float[4,4] x) => (float[4,4] y) <float k = {0.7}> "
    "{ [phase] p = Mul(t, k) [cos] c = Cos(p) [square] s = Mul(x, x) [product] m = MatMul(s, x) "
    "[scale] y = Mul(m, c) }"
)
"""An input with a range, a square that may overflow, and a product of matrices (TF32)."""


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Return the plans that any emulator of this process is asked for, as they are asked."""
    plans: list[Plan] = []
    build = EmulatedBackend.build

    def counted(backend: EmulatedBackend, plan: Plan, *, afresh: bool = False) -> EmulatedEngine:
        plans.append(plan)
        return build(backend, plan, afresh=afresh)

    monkeypatch.setattr(EmulatedBackend, "build", counted)
    return plans


def angle() -> Sequence[Sample]:
    """Return samples of times and of values whose squares overflow."""
    rng = np.random.default_rng(0)
    return [
        {"t": np.array(t, np.float32), "x": 300 * rng.normal(size=(4, 4)).astype(np.float32)}
        for t in (3, 900)
    ]


def model_of(name: str, folder: Path) -> tuple[Path, Any, Mapping[str, Any]]:
    """Return a model in a file, its samples, and the options of a run over it."""
    cases: Mapping[str, tuple[onnx.ModelProto | Path, Any, dict[str, Any]]] = {
        "advice": (parse(layer_norm()), large(), {}),
        "targets": (
            parse(MEAN),
            [{"x": np.full((8, 512), 200, np.float32)}],
            {"target": "tensorrt"},
        ),
        "ranges": (parse(ANGLE), angle(), {"ranges": {"t": (0, 999)}, "tol": 0.1}),
        "int8": (*stretched(), {"low": "int8", "tol": 0.1}),
        "low only": (
            tiny.write_model(folder / "tiny.onnx"),
            tiny.samples(),
            {"low_only": ["n5_Sqrt", "n7_Tanh", "n9_Mul"]},
        ),
        "ladder": (
            ladder_model.write(folder),
            ladder_model.samples(),
            {"ladder": ("int8", "fp16", "fp32"), "tol": 0.05},
        ),
    }
    proto, samples, options = cases[name]
    path = proto if isinstance(proto, Path) else save(proto, folder)
    return path, samples, {"tol": 1e-2, "threads": 1, "backend": "emulated", **options}


def run(name: str, folder: Path, **more: Any) -> Result:
    path, samples, options = model_of(name, folder)
    return find(path, inputs=samples, out=folder / "run", **options, **more)


@pytest.mark.parametrize(
    "name", ["targets", "ranges", "int8", "low only", "ladder", *nightly("advice")]
)
def test_all_that_is_judged_is_told(name: str, tmp_path: Path, built: list[Plan]) -> None:
    """Whatever is printed was a trial; a resumed run reads it, and evaluates nothing."""
    result = run(name, tmp_path)
    told = (result.builds, result.evaluations)
    assert (0, len(built)) == told
    trials = recorded_trials(tmp_path / "run")
    assert len(built) == len(trials)
    explains = {trial.proposal.case for trial in trials if trial.proposal.case}
    assert explains and all(
        trial.proposal.case for trial in trials if trial.proposal.phase is Phase.EXPLANATION
    )
    built.clear()
    again = run(name, tmp_path, resume=True)
    assert [] == built
    assert told == (again.builds, again.evaluations)
    for field in ("status", "kept", "error", "certificate", "other_targets", "tf32", "advice"):
        assert getattr(result, field) == getattr(again, field)
    assert result.input_ranges == again.input_ranges
    assert result.status in (Status.FOUND, Status.NOTHING_TO_KEEP, Status.INFEASIBLE)


@pytest.mark.parametrize("most", [3, *nightly(5, 13)])
def test_a_ladder_that_was_stopped_tells_the_trials_of_both_sessions(
    tmp_path: Path, built: list[Plan], most: int
) -> None:
    """The second session repeats nothing, and tells the sum.

    One that ends before the preflight's repeat is no case: that repeats what it is held against.
    """
    first = run("ladder", tmp_path, max_trials=most)
    assert first.status is Status.BUDGET_EXHAUSTED
    assert len(built) == len(recorded_trials(tmp_path / "run"))
    assert len(built) == first.builds + first.evaluations
    second = run("ladder", tmp_path, resume=True)
    assert len(built) == len(recorded_trials(tmp_path / "run"))
    assert len(built) == second.builds + second.evaluations
    (tmp_path / "whole").mkdir()
    whole = run("ladder", tmp_path / "whole")
    for field in ("status", "kept", "error", "certificate", "other_targets", "rungs"):
        assert getattr(whole, field) == getattr(second, field)
