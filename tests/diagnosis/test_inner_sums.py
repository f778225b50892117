"""Sums inside layers that an engine loses which adds in FP16, and rows that masks hide whole."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper

from effort import examples
from models import load_text, normal, parse, save, with_weights
from precision_bisect import find
from precision_bisect.explaining.diagnosis.extremes import extremes
from precision_bisect.explaining.diagnosis.inner_sums import inner_sums, products
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import Session
from precision_bisect.runs.results.other_targets import InnerSum

FP16 = 65504.0
HUGE, SMALL = 300.0, 1.0


def lost(model: Model, x: NDArray[np.float32]) -> list[InnerSum]:
    """Return the layers of a model whose sums are lost in FP16."""
    feeds = [{"x": x}]
    seen = extremes(model, feeds, 1)
    assert seen is not None
    return inner_sums(model, seen, feeds, frozenset(map(str, model.table.names)), FP16, 1)


def weighted(body: str, folder: Path, **weights: NDArray[Any]) -> Model:
    """Load a model written as text, with these weights."""
    return load_model(save(with_weights(parse(body, opset=17), weights), folder))


UP_AND_DOWN = np.repeat([HUGE, -HUGE], 64).astype(np.float32)
"""Products of these and of 300 add up to 5,760,000, and to 0 in the end."""
X = np.full((4, 128), HUGE, np.float32)
BODIES = {
    "MatMul": ("y = MatMul(x, w)", UP_AND_DOWN[:, None]),
    "MatMul of a vector": ("m = MatMul(x, w) a = Constant<value = int64[1] {1}>()"
                           " y = Unsqueeze(m, a)", UP_AND_DOWN),
    "MatMul by a constant": ("t = Transpose(x) y = MatMul(w, t)", UP_AND_DOWN[None]),
    "Gemm": ("y = Gemm<transB = 1>(x, w)", UP_AND_DOWN[None]),
    "Einsum": ('y = Einsum<equation = "ij,jk->ik">(x, w)', UP_AND_DOWN[:, None]),
    "Conv": ("s = Constant<value = int64[3] {4, 128, 1}>() r = Reshape(x, s)"
             " y = Conv(r, w)", UP_AND_DOWN[None, :, None]),
    "ReduceSum": ("p = Mul(x, w) a = Constant<value = int64[1] {1}>() y = ReduceSum(p, a)",
                  UP_AND_DOWN / HUGE),
    "ReduceMean": ("p = Mul(x, w) y = ReduceMean<axes = [1]>(p)", UP_AND_DOWN * 4 / HUGE),
    "GlobalAveragePool": ("p = Mul(x, w) s = Constant<value = int64[3] {4, 1, 128}>()"
                          " r = Reshape(p, s) y = GlobalAveragePool(r)", UP_AND_DOWN * 4 / HUGE),
}  # fmt: skip


@pytest.mark.parametrize(("text", "weight"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("fine", [False, True])
def test_partial_sums_beyond_the_result_are_told(
    text: str, weight: NDArray[np.float32], fine: bool, tmp_path: Path
) -> None:
    """Whichever operator adds: sums that go up and come down are told, those of one size not."""
    x = X.copy()
    x[:, 0] += 1
    if fine:
        # Only what goes up is left: the result is as large as the sums.
        x = np.where(np.arange(128) < 4, 1, 0).astype(np.float32) * np.ones((4, 1), np.float32)
    body = f"(float[4, 128] x) => (float[A, B] y) {{ {text} }}"
    found = lost(weighted(body, tmp_path, w=weight.astype(np.float32)), x)
    if fine:
        assert [] == found
    else:
        (one,) = found
        assert one.partial > 60 * HUGE
        assert one.absolute >= one.partial > 32 * one.result


def test_digits_are_lost_within_the_range_too(tmp_path: Path) -> None:
    """Partial sums of 19,200 for a result of 3 leave an FP16 adder no digit of it."""
    weight = (UP_AND_DOWN / HUGE)[:, None]
    x = X.copy()
    x[:, 0] += 3
    body = "(float[4, 128] x) => (float[A, B] y) { y = MatMul(x, w) }"
    (found,) = lost(weighted(body, tmp_path, w=weight), x)
    assert (19203.0, 38403.0, 3.0) == (found.partial, found.absolute, found.result)


def test_one_sign_after_the_other_counts_for_products(tmp_path: Path) -> None:
    """Engines add products in tiles, so that a sum in turns is not safe in its own order."""
    weight = np.resize([HUGE, -HUGE], 128).astype(np.float32)[:, None]
    x = X.copy()
    x[:, 0] += 1
    body = "(float[4, 128] x) => (float[A, B] y) { y = MatMul(x, w) }"
    (found,) = lost(weighted(body, tmp_path, w=weight), x)
    assert found.partial == pytest.approx(64 * HUGE**2, rel=1e-3)


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_random_products_are_let_be(size: int, tmp_path: Path) -> None:
    """Sums of independent products are as large as their results."""
    body = f"(float[8, {size}] x) => (float[A, B] y) {{ r = Relu(x) y = MatMul(r, w) }}"
    assert [] == lost(weighted(body, tmp_path, w=normal(size, 16, seed=1)), normal(8, size))


SHAPES: list[tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ("MatMul", {}, (2, 3, 4), (4, 5)),
    ("MatMul", {}, (3, 4), (2, 4, 5)),
    ("MatMul", {}, (2, 1, 3, 4), (1, 5, 4, 2)),
    ("MatMul", {}, (4,), (2, 4, 5)),
    ("MatMul", {}, (2, 3, 4), (4,)),
    ("MatMul", {}, (4,), (4,)),
    ("Gemm", {"alpha": 0.5, "transA": 1}, (4, 3), (4, 5)),
    ("Gemm", {"transB": 1}, (3, 4), (5, 4)),
    ("Einsum", {"equation": "bhid,bhjd->bhij"}, (2, 3, 4, 5), (2, 3, 6, 5)),
    ("Einsum", {"equation": "ij,jk"}, (2, 3), (3, 4)),
    ("Einsum", {"equation": "abc,cd->d"}, (2, 3, 4), (4, 5)),
    ("Conv", {}, (2, 4, 5, 6), (3, 4, 3, 3)),
    ("Conv", {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}, (1, 4, 7, 6), (6, 2, 3, 2)),
    ("Conv", {"dilations": [2], "pads": [1, 2], "strides": [2]}, (1, 2, 9), (3, 2, 3)),
    ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2]}, (1, 2, 9), (3, 2, 4)),
    ("Conv", {"auto_pad": "SAME_LOWER"}, (1, 2, 8), (3, 2, 4)),
    ("Conv", {"auto_pad": "VALID"}, (1, 2, 3, 3, 3), (2, 2, 2, 2, 2)),
]


@examples(30)
@given(st.sampled_from(SHAPES), st.randoms(use_true_random=False))
def test_products_add_up_to_what_the_operator_gives(
    case: tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]], chance: Any
) -> None:
    """Any element of any of these operators is the sum of its products."""
    kind, attributes, *shapes = case
    node = helper.make_node(kind, ["a", "b"], ["y"], **attributes)
    arrays = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    inputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip("ab", shapes, strict=True)
    ]
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    proto = helper.make_model(
        helper.make_graph([node], "g", inputs, [out]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    result = Session(proto, {}, 1).run(dict(zip("ab", arrays, strict=True)))["y"]
    index = tuple(chance.randrange(size) for size in result.shape)
    assert products(node, arrays, index).sum() == pytest.approx(float(result[index]), abs=1e-4)


@pytest.mark.parametrize(("axes", "keeps"), [((1,), 1), ((0, 2), 1), ((0, 2), 0), ((1, 2), 0)])
def test_reductions_add_along_their_axes(axes: tuple[int, ...], keeps: int) -> None:
    """With and without kept dimensions."""
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=keeps)
    x = normal(2, 3, 4)
    result = x.sum(axis=axes, keepdims=bool(keeps))
    for index in np.ndindex(*result.shape):
        found = products(node, [x], index, axes).sum()
        assert found == pytest.approx(float(result[index]), abs=1e-5)


def test_a_run_tells_of_sums_in_what_runs_low_alone(tmp_path: Path) -> None:
    """The remark has the figures, and what is kept is not told of."""
    body = "(float[4, 128] x) => (float[4, 1] y) { m = MatMul(x, w) y = Neg(m) }"
    weight = np.concatenate([UP_AND_DOWN / HUGE * 8])[:, None]
    path = save(with_weights(parse(body), {"w": weight}), tmp_path)
    x = X.copy()
    x[:, 0] += 17
    search = partial(find, path, inputs={"x": x}, tol=1e-2, threads=1)
    told = search(out=tmp_path / "run")
    assert not told.kept
    assert ["node_of_m"] == [each.layer for each in told.inner_sums]
    (remark,) = (note for note in told.notes if "adds in FP16" in note)
    assert "partial sums reach 153,736 for results up to 136" in remark
    kept = search(out=tmp_path / "kept", keep=["node_of_m"])
    assert not kept.inner_sums


LOW = float(np.finfo(np.float32).min)
MASKED = {
    "a constant mask": ("m = Add(x, mask) y = Softmax(m)", True),
    "a mask that is computed": ("h = Greater(x, big) m = Where(h, x, low) y = Softmax(m)", True),
    "through a Reshape": ("m = Add(x, mask) r = Reshape(m, shape) y = Softmax(r)", True),
    "a row that is hidden in part": ("m = Add(x, part) y = Softmax(m)", False),
    "another axis": ("m = Add(x, mask) y = Softmax<axis = 0>(m)", False),
    "no mask": ("y = Softmax(x)", False),
}


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
@pytest.mark.parametrize(("body", "hides"), MASKED.values(), ids=MASKED)
def test_rows_that_a_mask_hides_whole(body: str, hides: bool, opset: int, tmp_path: Path) -> None:
    """They are found wherever the mask comes from, and a row that is hidden in part is none."""
    if opset < 13 and "axis = 0" in body:
        pytest.skip("one row there")
    hidden = ", ".join([str(LOW)] * 4)
    text = f"""(float[2, 4] x) => (float[2, 4] y) <float[2, 4] mask = {{{hidden}, 0, 0, 0, 0}},
      float[2, 4] part = {{{hidden[: hidden.rindex(",")]}, 0, 0, 0, 0, 0}}, float low = {{{LOW}}},
      float big = {{0.5}}, int64[2] shape = {{2, 4}}> {{ {body} }}"""
    x = np.array([[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]], np.float32)
    seen = extremes(load_text(text, tmp_path, opset=opset), [{"x": x}], 1)
    assert seen is not None
    assert (["node_of_y"] if hides else []) == list(seen.hidden)


@pytest.mark.parametrize("given_mask", ["constant", "input", "computed", "boolean"])
@pytest.mark.parametrize("value", [LOW, -np.inf])
def test_a_hidden_row_of_attention_is_said_once(
    given_mask: str, value: float, tmp_path: Path
) -> None:
    """Whatever makes the mask of the operator, one remark says that engines differ."""
    mask = np.where(np.tri(4, dtype=bool), 0, value).astype(np.float32)
    mask[0] = value
    feed = {name: normal(1, 1, 4, 8, seed=i) for i, name in enumerate("qkv")}
    made = "mask = Where(seen, zero, low)" if given_mask == "computed" else ""
    shape = "float[1, 1, 4, 8]"
    inputs = f"{shape} q, {shape} k, {shape} v"
    weights: dict[str, NDArray[Any]] = {}
    if given_mask == "input":
        inputs += ", float[4, 4] mask"
        feed["mask"] = mask
    elif given_mask == "constant":
        weights["mask"] = mask
    elif given_mask == "boolean":
        inputs += ", bool[4, 4] mask"
        feed["mask"] = mask == 0
    else:
        inputs += ", bool[4, 4] seen"
        feed["seen"] = mask == 0
        weights |= {"zero": np.zeros((), np.float32), "low": np.array(value, np.float32)}
    body = f"({inputs}) => ({shape} y) {{ {made} y = Attention(q, k, v, mask) }}"
    path = save(with_weights(parse(body, opset=23, ir=11), weights), tmp_path)
    told = find(path, inputs=feed, tol=2e-2, threads=1, out=tmp_path / "run")
    assert ["node_of_y"] == list(told.hidden_rows)
    # The first two remarks are on the screen, before what is true of the file on any samples.
    (remark,) = (note for note in told.notes[:2] if "hides whole rows" in note)
    assert "whatever the precision" in remark


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize(
    ("hidden_key", "causal", "hides"), [(0, 1, True), (0, 0, False), (3, 1, False)]
)
def test_a_causal_attention_hides_later_keys_as_well(
    hidden_key: int, causal: int, hides: bool, boolean: bool, tmp_path: Path
) -> None:
    """The first row sees the first key alone: a mask that hides it, hides the row."""
    mask = np.zeros((4, 4), np.float32)
    mask[:, hidden_key] = LOW
    feed = {name: normal(1, 1, 4, 8, seed=i) for i, name in enumerate("qkv")}
    shape = "float[1, 1, 4, 8]"
    kind, given = ("bool", mask == 0) if boolean else ("float", mask)
    text = f"""({shape} q, {shape} k, {shape} v, {kind}[4, 4] mask) => ({shape} y) {{
      y = Attention<is_causal = {causal}>(q, k, v, mask) }}"""
    seen = extremes(load_text(text, tmp_path, opset=23), [{**feed, "mask": given}], 1)
    assert seen is not None
    assert (["node_of_y"] if hides else []) == list(seen.hidden)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty_rows_hide_nothing(shape: tuple[int, int], tmp_path: Path) -> None:
    """What is empty costs no other tensor its largest value."""
    text = "(float[N, M] x) => (float[N, M] y) { a = Abs(x) y = Softmax(a) }"
    feed = {"x": np.zeros(shape, np.float32)}
    seen = extremes(load_text(text, tmp_path, opset=17), [feed], 1)
    assert seen is not None
    assert (["a", "y"], []) == ([*seen.largest], list(seen.hidden))
