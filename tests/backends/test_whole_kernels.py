"""What ONNX Runtime fuses is rounded at its ends alone, as long as a plan keeps none of it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models import keeping, load_text, normal, parse, save, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs import ort_fusions
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, HalfName

CENTRE = "[mean] m = ReduceMean<axes = [{axis}]>(x) [centre] d = Sub(x, m)"
PIECES = """(float[2, 64, 64] x) => (float[2, 64, 64] y) <float two = {{2}}, float e = {{1}}> {{
  {centre} [square] p = Pow({d}, two) [variance] v = ReduceMean<axes = [{axis}]>(p)
  [sum] a = Add(v, e) [root] r = Sqrt(a) [quotient] q = Div({d}, r) [scale] {scaled} = Mul(q, w)
  {shift} }}"""
WEIGHTS: Mapping[str, NDArray[np.float32]] = {
    "w": (1 + normal(64, seed=1) / 8).astype(np.float32),
    "b": normal(64, seed=2),
}
LOUD = 600 * normal(2, 64, 64)
"""Their squares leave FP16's range."""


def norm(folder: Path, *, centred: bool, axis: int = -1, opset: int = 13) -> Model:
    """Return a LayerNorm in pieces, or an RMSNorm."""
    shift = "[shift] y = Add(s, b)" if centred else ""
    centre = CENTRE.format(axis=axis) if centred else ""
    text = PIECES.format(
        centre=centre, d="d" if centred else "x", scaled="sy"[not centred], shift=shift, axis=axis
    )
    weights = WEIGHTS if centred else {"w": WEIGHTS["w"]}
    return load_model(save(with_weights(parse(text, opset=opset), weights), folder))


def emulated(
    model: Model, plan: Plan, x: NDArray[np.float32], low: HalfName = "fp16"
) -> NDArray[np.float32]:
    """Return the output as ONNX Runtime on CUDA is taken to compute it."""
    backend = EmulatedBackend(model, low, threads=1, targets=["onnxruntime"])
    (found,) = backend.evaluate(plan, {"x": x}).values()
    return found


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize(("centred", "opset"), [(True, 13), (True, 17), (False, 13)])
def test_a_norm_that_runs_low_as_a_whole(
    centred: bool, opset: int, low: HalfName, tmp_path: Path
) -> None:
    """It computes in FP32 what it reads in the low type."""
    kind = LOW_TYPES[low]
    x = kind.round(LOUD)
    d = x - x.mean(-1, keepdims=True) if centred else x
    normed = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1) * kind.round(WEIGHTS["w"])
    expected = kind.round(normed + (kind.round(WEIGHTS["b"]) if centred else 0))
    found = emulated(norm(tmp_path, centred=centred, opset=opset), Plan.of(()), LOUD, low)
    # A last digit of FP32 decides some that lie between two values of the low type.
    assert np.mean(found == expected) > 0.99
    np.testing.assert_allclose(found, expected, rtol=2 * kind.unit, atol=1e-6)


@pytest.mark.parametrize(
    ("kept", "holds"),
    [
        *((layer, False) for layer in ("square", "variance", "root", "quotient", "scale")),
        *((layer, True) for layer in ("mean", "centre", "shift")),
    ],
)
def test_a_norm_that_a_plan_splits(kept: str, holds: bool, tmp_path: Path) -> None:
    """From the square to the scale it is one kernel, or the squares overflow."""
    model = norm(tmp_path, centred=True)
    exact = emulated(model, Plan.all_high(len(model.table.names)), LOUD)
    with np.errstate(invalid="ignore"):
        error = np.abs(emulated(model, keeping(model, kept), LOUD) - exact).max()
    assert holds == bool(error < 0.1)


def test_a_norm_that_is_not_fused(tmp_path: Path) -> None:
    """Along a middle axis ONNX Runtime computes it in pieces."""
    model = norm(tmp_path, centred=False, axis=1)
    assert not np.allclose(
        emulated(model, Plan.of(()), LOUD),
        emulated(model, Plan.all_high(len(model.table.names)), LOUD),
        atol=0.1,
    )


@pytest.mark.parametrize(
    ("alpha", "gate"), [(1.0, "g = Sigmoid(x)"), (1.702, "v = Mul(x, a) g = Sigmoid(v)")]
)
def test_silu_rounds_each_of_its_steps(alpha: float, gate: str, tmp_path: Path) -> None:
    """CUDA's QuickGelu has its sigmoid in half: 1 less nearly 1 for negative values."""
    body = f"(float[n] x) => (float[n] y) <float a = {{{alpha}}}> {{ {gate} y = Mul(x, g) }}"
    x = np.linspace(-12, 4, 2000, dtype=np.float32).astype(np.float16)
    v, one = x * np.float16(alpha), np.float16(1)
    power = np.exp(-abs(v))
    expected = x * np.where(v < 0, one - one / (one + power), one / (one + power))
    model = load_text(body, tmp_path)
    found = emulated(model, Plan.of(()), x.astype(np.float32))
    np.testing.assert_array_equal(expected.astype(np.float32), found)
    split = emulated(model, Plan.of([0]), x.astype(np.float32))
    exact = x.astype(np.float64) / (1 + np.exp(-alpha * x.astype(np.float64)))
    assert np.abs(found - exact).max() > np.abs(split - exact).max()


def test_large_weights_do_not_hide_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their shapes are enough for the optimizer, which is not to write them."""
    text = "(float[2, 64] x) => (float[2, 64] y) { m = MatMul(x, w) g = Sigmoid(m) y = Mul(m, g) }"
    proto = with_weights(parse(text), {"w": normal(64, 64)})
    model = load_model(save(proto, tmp_path))
    whole = ort_fusions.fused_groups(model)
    monkeypatch.setattr(ort_fusions, "_WRITTEN_BYTES", 0)
    assert 1 == len(whole)
    assert whole == ort_fusions.fused_groups(model)
