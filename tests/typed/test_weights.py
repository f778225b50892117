"""Weights of typed graphs: their copies, and what the low type does to them."""

from pathlib import Path

import numpy as np
import pytest

from models import keeping, load_text, normal, parse, save, with_weights
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import BF16, FP16, LowType
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from typed_graphs import casts, checked

LOWEST = Plan.of(())


def test_weights_cross_in_the_file(tmp_path: Path) -> None:
    """A weight is there in each type that is read, once; one that nobody reads is gone."""
    proto = parse(
        """(float[2, 64] x) => (float[2, 64] y) {
            [a] a = MatMul(x, w) [b] b = MatMul(a, w) [c] y = MatMul(b, w) }"""
    )
    model = load_model(save(with_weights(proto, {"w": normal(64, 64)}), tmp_path))
    low_copy = "precision_bisect/weight/w/fp16"
    stored = {
        kept: {
            name: str(w.dtype) for name, w in checked(model, keeping(model, *kept)).weights.items()
        }
        for kept in ((), ("b",), ("a", "b", "c"))
    }
    assert {low_copy: "float16"} == stored[()]
    assert {low_copy: "float16", "w": "float32"} == stored[("b",)]
    assert {"w": "float32"} == stored[("a", "b", "c")]
    assert (
        TypedWriter(model, Pair(low="fp16", high="fp32")).write(LOWEST).weights[low_copy].source
        is model.weights["w"]
    )


def test_constants_of_nodes_become_low_weights(tmp_path: Path) -> None:
    """A Constant node, or an Identity of a weight, is a low weight; a computed one is cast."""
    model = load_text(
        """(float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            k = Constant<value = float[2] {3, 4}>() h = Identity(w) i = Identity(h) e = Exp(w)
            a = Add(x, k) b = Mul(a, i) y = Add(b, e) }""",
        tmp_path,
    )
    typed = checked(model, LOWEST)
    assert ["x/fp16", "e/fp16", "y/fp32"] == casts(typed)
    kinds = [node.op_type for node in typed.proto.graph.node]
    assert "Constant" not in kinds and "Identity" not in kinds
    high = checked(model, Plan.all_high(3))
    assert [n.name for n in model.proto.graph.node] == [n.name for n in high.proto.graph.node]


def test_weights_out_of_range_are_listed(tmp_path: Path) -> None:
    """Those that layers or followers read, each with its largest finite value."""
    values = np.zeros((20, 20), np.float32)
    values[0, :6] = [1e5, -2e5, np.inf, 1e-9, -1e-6, 1e-6]
    proto = parse(
        """(float[4, 20] x, int64[1] i) => (float[4, 20] y, float[1, 20] z) {
            h = MatMul(x, w) a = MatMul(h, w) b = Mul(a, one) y = Resize(b, , scales)
            z = Gather(far, i) }"""
    )
    weights = {
        "w": values,
        "one": np.ones((), np.float32),
        "scales": np.array([1, 1e-9], np.float32),
        "far": np.full((2, 20), 7e4, np.float32),
    }
    model = load_model(save(with_weights(proto, weights), tmp_path))
    first, second = TypedWriter(model, Pair(low="fp16", high="fp32")).out_of_range
    assert ("w", 2e5) == (first.name, first.largest)
    assert ("far", 7e4) == (second.name, second.largest)
    assert () == TypedWriter(model, Pair(low="bf16", high="fp32")).out_of_range


def test_weights_stored_in_16_bits_are_weights(tmp_path: Path) -> None:
    """A model that only stores its weights in FP16 is written like any other."""
    proto = parse("(float[2, 40] x) => (float[2, 40] y) { v = Cast<to = 1>(w) y = MatMul(x, v) }")
    weights = {"w": normal(40, 40).astype(np.float16)}
    model = load_model(save(with_weights(proto, weights), tmp_path))
    assert ["x/fp16", "y/fp32"] == casts(checked(model, LOWEST))
    assert [] == casts(checked(model, Plan.all_high(1)))


@pytest.mark.parametrize("low", [FP16, BF16], ids=lambda low: low.name)
def test_weights_leave_the_range_as_the_type_rounds(tmp_path: Path, low: LowType) -> None:
    """Those of which rounding makes infinity, with ties and negative ones, and no other."""
    limit = np.float32(low.largest)
    tie = np.float32(low.largest * (1 + 2.0 ** -(low.digits + 1) / (1 - 2.0**-low.digits)))
    near = [
        limit,
        np.nextafter(limit, np.inf),
        np.nextafter(tie, 0),
        tie,
        np.nextafter(tie, np.inf),
    ]
    values = [np.float32(sign * each) for each in near for sign in (1, -1)]
    weights = {
        f"w{i}": np.array([np.nan, np.inf, value, 1e-9], np.float32)
        for i, value in enumerate(values)
    }
    steps = "".join(f"y{i} = Mul(x, w{i}) " for i in range(len(values)))
    ends = ", ".join(f"float[4] y{i}" for i in range(len(values)))
    proto = with_weights(parse(f"(float[4] x) => ({ends}) {{ {steps} }}"), weights)
    writer = TypedWriter(load_model(save(proto, tmp_path)), Pair(low=low.name, high="fp32"))
    found = {each.name: each.largest for each in writer.out_of_range}
    infinite = np.isinf(low.round(np.array(values)))
    assert 4 <= infinite.sum() < len(values)
    assert found == {f"w{i}": abs(values[i]) for i in np.flatnonzero(infinite)}
