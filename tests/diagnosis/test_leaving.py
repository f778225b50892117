"""What leaves the range of the low type in one run in FP32."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import load_text
from precision_bisect.api import find
from precision_bisect.explaining.diagnosis.extremes import extremes
from precision_bisect.explaining.diagnosis.out_of_range import out_of_range
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import TargetName

PAIR = Pair(low="fp16", high="fp32")
SQUARES = (
    "(float[4] x) => (float[4] y) <float small = {1e-6}> "
    "{ a = Neg(x) b = Mul(a, a) c = Mul(b, small) y = Tanh(c) }"
)
NAFNET = Path(__file__).parents[2] / "examples" / "nafnet"


def feed(largest: float) -> Sample:
    """Return a sample whose largest value is this."""
    return {"x": np.array([0, 1, 2, largest], np.float32)}


def leaving(
    model: Model, pair: Pair, feeds: Sequence[Sample], weights: Mapping[str, float], **options: Any
) -> tuple[Plan | None, Plan | None]:
    """Return the layers that leave the range, with and without masks."""
    seen = partial(extremes, model, feeds, 1)
    return out_of_range(model, pair, feeds, weights, seen, **options)


def kept(text: str, folder: Path, *feeds: Sample, pair: Pair = PAIR) -> list[str]:
    """Return the names of the layers that leave the range of the low type."""
    model = load_text(text, folder)
    found, _ = leaving(model, pair, feeds, {})
    return [str(model.table.names[i]) for i in found.indices] if found else []


def test_what_stores_and_what_reads_a_value_beyond_the_range_leaves_it(tmp_path: Path) -> None:
    """One sample of several is enough; what comes before and after does not count."""
    assert ["node_of_b", "node_of_c"] == kept(SQUARES, tmp_path, feed(1), feed(300))
    assert [] == kept(SQUARES, tmp_path, feed(1), feed(255))


def test_a_stored_sum_beyond_the_range_keeps_its_mean_alone(tmp_path: Path) -> None:
    """ONNX Runtime on CUDA stores the sum behind a mean; what reads the mean may run low."""
    text = (
        "(float[2, 512] x) => (float[2, 1] y) "
        "{ m = ReduceMean <axes = [1], keepdims = 1> (x) y = Tanh(m) }"
    )
    model = load_text(text, tmp_path, opset=17)
    sample = {"x": np.full((2, 512), 200, np.float32)}
    cases: tuple[tuple[TargetName, list[str]], ...] = (
        ("tensorrt", []),
        ("onnxruntime", ["node_of_m"]),
    )
    for target, names in cases:
        found, _ = leaving(model, PAIR, [sample], {}, targets=[target])
        assert names == [str(model.table.names[i]) for i in (found.indices if found else ())]


@pytest.mark.parametrize(("largest", "count"), [(1000, 0), (1e6, 6)])
def test_a_kernel_leaves_the_range_as_a_whole(largest: float, count: int, tmp_path: Path) -> None:
    """Squares inside ONNX Runtime's norm are not stored; what enters it keeps all of it."""
    text = """(float[2, 4] x) => (float[2, 4] y) <float two = {2}, float e = {1},
      float[4] w = {1, 1, 1, 1}> { s = Neg(x) p = Pow(s, two)
      v = ReduceMean<axes = [-1]>(p) a = Add(v, e) r = Sqrt(a) q = Div(s, r) y = Mul(q, w) }"""
    model = load_text(text, tmp_path)
    sample: Sample = {"x": np.array([[1, 2, 3, largest]] * 2, np.float32)}
    plans = {
        target: leaving(model, PAIR, [sample], {}, targets=[target])[0]
        for target in ("onnxruntime", "tensorrt")
    }
    assert count == len((plans["onnxruntime"] or Plan.of(())).kept - {0})
    assert plans["tensorrt"]


def test_an_input_beyond_the_range_counts(tmp_path: Path) -> None:
    """What reads such an input cannot have it low."""
    assert ["node_of_y"] == kept(
        "(float[4] x) => (float[4] y) { y = Tanh(x) }", tmp_path, feed(1e5)
    )


def test_weights_that_leave_the_range_keep_their_readers(tmp_path: Path) -> None:
    """They are told by name, and are not looked at again."""
    model = load_text(SQUARES, tmp_path)
    found, _ = leaving(model, PAIR, [feed(1)], {"small": 1e5})
    assert found is not None
    assert ["node_of_c"] == [str(model.table.names[i]) for i in found.indices]


@pytest.mark.parametrize("low", ["bf16", "int8"])
def test_other_types_keep_nothing(tmp_path: Path, low: str) -> None:
    """BF16 has the range of FP32, and 8-bit types have scales."""
    pair = Pair(low=low, high="fp32")  # type: ignore[arg-type]
    assert [] == kept(SQUARES, tmp_path, feed(300), pair=pair)


def test_empty_tensors_are_no_trouble(tmp_path: Path) -> None:
    """They hold nothing that could leave the range."""
    text = "(float[N] x) => (float[N] y) { y = Tanh(x) }"
    assert [] == kept(text, tmp_path, {"x": np.empty(0, np.float32)})


def test_on_a_real_network_the_plan_passes_before_any_ranking(tmp_path: Path) -> None:
    """In NAFNet these are the squares and means of its norms, and they are all that is needed.

    FP32 with TF32 is the first of the trials, the fused form with every layer low the last before.
    """
    model = load_model(NAFNET / "nafnet.onnx")
    with np.load(NAFNET / "inputs" / "000.npz") as stored:
        plan, _ = leaving(model, PAIR, [dict(stored)], {})
    assert plan is not None
    assert {"Pow", "ReduceMean_1"} == {
        str(model.table.names[i]).rsplit("/", 1)[1] for i in plan.indices
    }
    result = find(
        NAFNET / "nafnet.onnx",
        inputs=NAFNET / "inputs" / "000.npz",
        tol=1e-2,
        max_trials=6,
        out=tmp_path / "run",
    )
    assert "budget_exhausted" == result.status.value
    assert 0 < len(result.kept) <= 20


def test_masks_of_attention_are_meant_to_leave_the_range(tmp_path: Path) -> None:
    """What adds a mask is beyond the range, and counts only where masks do; a square always."""
    body = """(float[4] x) => (float[4] y) <float[4] mask = {-1e9, 0, 0, 0}> {
      s = Mul(x, x) m = Add(x, mask) p = Softmax(m) y = Add(s, p) }"""
    model = load_text(body, tmp_path)
    plans = leaving(model, PAIR, [feed(1e3)], {"mask": 1e9})
    for found, names in zip(plans, (["s", "m", "p", "y"], ["s", "y"]), strict=True):
        assert found is not None
        assert [f"node_of_{name}" for name in names] == [
            str(model.table.names[i]) for i in found.indices
        ]
