"""The figures of `benchmarks/engine.py`: rank correlation, and which plans are judged."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_judge import (
    MOST_SINGLES,
    RANDOM_PLANS,
    Judge,
    Setting,
    agreement,
    spearman,
    stratified,
    subsets,
)
from engine_models import with_batch

from models import CANCELLATION, normal, parse, save
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1e9], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, -np.inf], -1.0),
        ([1, 2, 2, 3], [1, 2, 3, 4], 0.9487),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, 2], [1, 2], None),
    ],
)
def test_spearman(a: list[float], b: list[float], expected: float | None) -> None:
    """Ranks are compared, equal values share theirs, and too little to compare gives nothing."""
    assert expected == spearman(np.array(a, float), np.array(b, float))


def test_stratified(tmp_path: Path) -> None:
    """Of many layers as many of each operator are taken as its share, each at most once."""
    steps = "".join(f"t{i + 1} = {'Neg' if i % 3 else 'Abs'}(t{i}) " for i in range(600))
    path = save(parse(f"(float[1] t0) => (float[1] t600) {{ {steps} }}"), tmp_path)
    model = load_model(path)
    chosen = stratified(model)
    negs = sum(model.table.candidates[i].op_type == "Neg" for i in chosen)
    assert (MOST_SINGLES, MOST_SINGLES, 100) == (len(chosen), len(set(chosen)), negs)


def test_random_plans() -> None:
    """The random plans are the same each time, and of all sizes."""
    plans = subsets(50)
    assert subsets(50) == plans
    assert (RANDOM_PLANS, True, True) == (
        len(plans),
        min(map(len, plans)) < 10,
        max(map(len, plans)) > 40,
    )


def test_agreement_with_itself(tmp_path: Path) -> None:
    """The emulator agrees with itself, plan by plan, on several threads."""
    path = save(parse(CANCELLATION), tmp_path)
    setting = Setting(
        path=path, samples=[{"x": normal(4)}], limits={"atol": 1e-2}, backend="emulated"
    )
    plans = [Plan.of(kept) for kept in ((), (0,), (1,), (0, 1))]
    found = agreement(Judge(setting, workers=2), plans, seconds=60.0)
    assert (4, 1.0, 1.0) == (found["judged"], found["spearman"], found["median_ratio"])


def test_other_batch(tmp_path: Path) -> None:
    """A model takes another batch size where nothing in it depends on the old one."""
    source = save(parse("(float[1,3] x) => (float[1,3] y) { y = Relu(x) }"), tmp_path, "one.onnx")
    proto = onnx.load(with_batch(source, tmp_path / "five.onnx", 5))
    shape = proto.graph.output[0].type.tensor_type.shape
    assert [5, 3] == [dim.dim_value for dim in shape.dim]
