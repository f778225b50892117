"""Products that stay FP32 are TF32's where the emulator is told so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from onnx import helper

from effort import examples
from models import normal, parse, save, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.tf32 import (
    initializers,
    round_to_tf32,
    rounded_operand,
)
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import Session
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair

FLOATS = st.floats(width=32, allow_subnormal=False)


def nearest(array: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return values with eleven significant bits, to nearest even, by NumPy's own rounding."""
    mantissa, exponent = np.frexp(array.astype(np.float64))
    rounded: NDArray[np.float64] = np.ldexp(np.rint(mantissa * 2**11), exponent - 11)
    return rounded


@examples(50)
@example(np.array([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 0, 1 + 2**-23], np.float32))
@given(arrays(np.float32, (5,), elements=FLOATS.filter(lambda x: abs(x) < 1e38 or x != x)))
def test_values_are_rounded_to_nearest_even(array: NDArray[np.float32]) -> None:
    """As tensor cores take them; what is not finite stays as it is."""
    finite = np.isfinite(array)
    rounded = round_to_tf32(array)
    np.testing.assert_array_equal(nearest(array[finite]), rounded[finite])
    np.testing.assert_array_equal(array[~finite], rounded[~finite])


PRODUCTS = {
    "MatMul": ("(float[4, 64] x) => (float[4, 8] y) { [p] y = MatMul(x, w) }", (64, 8)),
    "two activations": (
        "(float[4, 64] x) => (float[4, 4] y) "
        "{ t = Transpose<perm = [1, 0]>(x) [p] y = MatMul(x, t) }",
        (),
    ),
    "Conv": (
        "(float[1, 4, 8, 8] x) => (float[1, 8, 6, 6] y) { [p] y = Conv(x, w) }",
        (8, 4, 3, 3),
    ),
}
INNER = {
    "in a branch": "u = If(b) <then_branch = t () => (float[4, 8] v) { v = MatMul(h, w) }, "
    "else_branch = e () => (float[4, 8] v) { v = MatMul(h, w) }>",
    "in a branch of a loop": "a = Loop(once, on) <body = l (int64 i, bool c) => (bool d, "
    "float[4, 8] g) { d = Identity(c) g = If(b) <then_branch = t () => (float[4, 8] v) "
    "{ v = MatMul(h, w) }, else_branch = e () => (float[4, 8] v) { v = MatMul(h, w) }> }> "
    "u = Reshape(a, square)",
}
PRODUCTS |= {
    case: (
        "(float[4, 64] x) => (float[4, 8] y) <float far = {-9}, int64 once = {1}, bool on = {1}, "
        f"int64[2] square = {{4, 8}}> {{ [p] h = Neg(x) m = ReduceMax<keepdims = 0>(x) "
        f"b = Greater(m, far) {text} y = Neg(u) }}",
        (64, 8),
    )
    for case, text in INNER.items()
}
STAY = {
    "a row": ("(float[1, 64] x) => (float[1, 8] y) { [p] y = MatMul(x, w) }", (64, 8)),
    "depthwise": (
        "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { [p] y = Conv<group = 4>(x, w) }",
        (4, 1, 3, 3),
    ),
    "three channels": (
        "(float[1, 3, 8, 8] x) => (float[1, 8, 6, 6] y) { [p] y = Conv(x, w) }",
        (8, 3, 3, 3),
    ),
}


def computed(
    text: str, weight: tuple[int, ...], folder: Path, *, tf32: bool, asked: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return a sample, the weight, and what the emulator makes of them with every layer high.

    The layer p is a candidate, unless it was `asked` to stay FP32.
    """
    values = normal(*weight, seed=1)
    proto = with_weights(parse(text), {"w": values} if weight else {})
    model = load_model(save(proto, folder))
    x = normal(*[d.dim_value for d in model.proto.graph.input[0].type.tensor_type.shape.dim])
    if asked:
        high = Pair(low="fp16", high="fp32").high_form
        model = replace(model, table=model.table.asking({LayerName("p"): high}))
    backend = EmulatedBackend(model, threads=1, tf32=tf32)
    everything = Plan.all_high(len(model.table.candidates))
    return x, values, backend.evaluate(everything, {"x": x})["y"]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("case", PRODUCTS)
def test_products_take_rounded_operands(case: str, asked: bool, tmp_path: Path) -> None:
    """Both operands are rounded, sums are not; against products in double precision.

    Of what no plan changes as well: else FP32 in TF32 would be said to hold where it fails.
    """
    text, weight = PRODUCTS[case]
    x, w, y = computed(text, weight, tmp_path, tf32=True, asked=asked)
    a, b = (round_to_tf32(each).astype(np.float64) for each in (x, w if weight else x.T))
    if case == "Conv":
        windows = np.lib.stride_tricks.sliding_window_view(a[0], (3, 3), (1, 2))
        expected = np.einsum("chwij,ocij->ohw", windows, b)[None]
    else:
        expected = a @ b
    np.testing.assert_allclose(expected, y, rtol=0, atol=1e-5)
    exact = computed(text, weight, tmp_path, tf32=False)[2]
    assert 1e-4 < np.abs(exact - expected).max() < 1e-1


@pytest.mark.parametrize("case", STAY)
def test_what_stays_fp32(case: str, tmp_path: Path) -> None:
    """Rows, depthwise convolutions and odd channels were not on tensor cores when measured."""
    text, weight = STAY[case]
    exact, as_tf32 = (computed(text, weight, tmp_path, tf32=tf32)[2] for tf32 in (False, True))
    np.testing.assert_array_equal(exact, as_tf32)


ODD = [0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 1 + 2**-11, 1 + 3 * 2**-11, -3e38, 2.0**100]


@examples(50)
@example(np.array(ODD, np.float32), 10)
@example(np.array(ODD, np.float32), 17)
@given(arrays(np.float32, (11,), elements=FLOATS), st.sampled_from([10, 17]))
def test_the_graph_rounds_as_tensor_cores_do(array: NDArray[np.float32], version: int) -> None:
    """Whatever the opset; from 2^100 on with as many bits or more, and never into NaN."""
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [11]) for n in ("x", "y")]
    nodes = rounded_operand("x", "y", version)
    graph = helper.make_graph(nodes, "rounding", info[:1], info[1:], initializers())
    opsets = [helper.make_opsetid("", version)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    y = Session(proto, {}, threads=1).run({"x": array})["y"]
    usual = ~(np.abs(array) >= 2.0**100)
    np.testing.assert_array_equal(round_to_tf32(array)[usual], y[usual])
    np.testing.assert_allclose(array[~usual], y[~usual], rtol=2.0**-11)
