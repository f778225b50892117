"""Typed graphs with norms open with ONNX Runtime's default options, whatever a plan keeps."""

import tempfile
from pathlib import Path

import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from effort import examples
from models import normal, parse, save, with_weights
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, HalfName, Pair

WRITTEN_OUT = """
  m = ReduceMean<axes = [-1]>(h) d = Sub(h, m) q = Pow(d, two) v = ReduceMean<axes = [-1]>(q)
  e = Add(v, eps) r = Sqrt(e) n = Div(d, r) s = Mul(n, w) o = Add(s, b)"""
ROOT_MEAN_SQUARE = """
  q = Pow(h, two) v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(h, r)
  o = Mul(n, w)"""
NORMS = [
    *((WRITTEN_OUT, opset) for opset in (13, 17)),
    (ROOT_MEAN_SQUARE, 13),
    ("o = LayerNormalization(h, w, b)", 17),
]
LAYERS = 12
"""More than any of these graphs has."""


def opens(
    norm: str, opset: int, before: str, kept: frozenset[int], low: HalfName, *, seal: bool = True
) -> bool:
    """Tell whether the typed graph of a plan opens with default options on the CPU."""
    body = f"""(float[2, 8, 16] x) => (float[2, 8, 16] y) <float two = {{2}}, float eps = {{1}}>
      {{ h = {before} {norm} y = Neg(o) }}"""
    weights = {"w": normal(16), "b": normal(16, seed=1)}
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(save(with_weights(parse(body, opset=opset), weights), Path(folder)))
        writer = TypedWriter(model, Pair(low=low, high="fp32"))
        plan = Plan.of(i for i in kept if i < len(model.table.names))
        path = Path(folder) / "typed.onnx"
        save_typed(writer.write(plan, guard_islands=False, seal=seal), path)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except NoKernel:
            # It comes after the check of types, and only a GPU has all kernels.
            return True
        except Exception:
            return False
    return True


@examples(100)
@given(
    st.sampled_from(NORMS),
    st.sampled_from(["Relu(x)", "Add(x, x)", "Identity(x)"]),
    st.frozensets(st.integers(0, LAYERS - 1)),
    st.sampled_from(HALF_NAMES),
)
def test_whatever_is_kept(
    norm: tuple[str, int], before: str, kept: frozenset[int], low: HalfName
) -> None:
    """Fusions look through Casts; guards keep them from mixing types."""
    assert opens(*norm, before, kept, low)


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("Identity(x)", ()),
        ("Relu(x)", (0,)),
        ("Identity(x)", range(7)),
        ("Relu(x)", (0, 1, 2)),
    ],
)
def test_what_guards_are_for(before: str, kept: tuple[int, ...]) -> None:
    """Without them ONNX Runtime makes a LayerNormalization of two types, and refuses it."""
    refused, guarded = (
        opens(WRITTEN_OUT, 17, before, frozenset(kept), "fp16", seal=seal)
        for seal in (False, True)
    )
    assert (False, True) == (refused, guarded)
