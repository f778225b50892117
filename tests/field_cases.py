"""Small models of what people reported, each with a plan that holds and samples that show it.

Between and behind the layers of the plan stand nodes that a list of layers leaves out: Expand
behind a clipped norm, TopK and ArgMax behind scores, a Floor and a Cast in the arithmetic of
indices, a DequantizeLinear before a product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models import parse, with_weights

Sample = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCase:
    """A model, the layers that must stay in FP32 for errors below `tolerance`, and samples.

    `along` are the other nodes that read or write FP32 then, in network order.
    """

    model: onnx.ModelProto
    kept: Sequence[str]
    along: Sequence[str]
    samples: Sequence[Sample]
    tolerance: float = 1e-2


def clipped_norm() -> FieldCase:
    """F.normalize as torch exports it, with rows of zeros: its epsilon is 0 in FP16 (NaN)."""
    rng = np.random.default_rng(3)
    model = parse(
        """(float[1,24,16] tokens, int64[1,24] mask) => (float[1,24,24] similarity)
        <int64[1] last = {2}, float eps = {1e-12}> {
        [cast] a = Cast<to = 1>(mask) [unsqueeze] m = Unsqueeze(a, last)
        [project] p = MatMul(tokens, w) [masked] x = Mul(p, m)
        [length] n = ReduceL2<axes = [-1], keepdims = 1>(x) [clip] c = Clip(n, eps)
        [shape] s = Shape(x) [expand] e = Expand(c, s) [div] d = Div(x, e)
        [transpose] t = Transpose<perm = [0, 2, 1]>(d) [similarity] similarity = MatMul(d, t) }"""
    )
    weights = {"w": rng.normal(0, 0.3, (16, 16)).astype(np.float32)}
    return FieldCase(
        model=with_weights(model, weights),
        kept=["clip", "div"],
        along=["cast", "unsqueeze", "expand", "transpose"],
        samples=[
            {
                "tokens": rng.normal(0, 1, (1, 24, 16)).astype(np.float32),
                "mask": (np.arange(24) < 24 - zeros).astype(np.int64)[None],
            }
            for zeros in (3, 5, 8)
        ],
    )


def labels() -> FieldCase:
    """The end of a detector: the six best of 144 anchors, and the class of each."""
    rng = np.random.default_rng(10)
    model = parse(
        """(float[1,144,32] features) => (float[1,6] scores, int64[1,6] labels)
        <int64[1] k = {6}, int64[1] last = {-1}, int64[3] repeats = {1, 1, 10}> {
        [head] h = MatMul(features, w) [bias] c = Add(h, b)
        [best] m = ReduceMax<axes = [-1], keepdims = 0>(c) [topk] v, i = TopK<axis = 1>(m, k)
        [unsqueeze] u = Unsqueeze(i, last) [tile] j = Tile(u, repeats)
        [gather] g = GatherElements<axis = 1>(c, j) [sigmoid] s = Sigmoid(g)
        [score] scores = ReduceMax<axes = [-1], keepdims = 0>(s)
        [argmax] labels = ArgMax<axis = -1, keepdims = 0>(s) }"""
    )
    # Nearly the same for two classes: rounding decides between them.
    head = rng.normal(0, 0.4, (32, 10))
    head[:, 5:] = head[:, :5] * (1 + 1e-4 * rng.normal(0, 1, (32, 5)))
    weights = {"w": head.astype(np.float32), "b": np.full(10, -1, np.float32)}
    return FieldCase(
        model=with_weights(model, weights),
        kept=["head", "bias", "sigmoid", "best"],
        along=["gather", "argmax"],
        samples=[{"features": rng.normal(0, 1, (1, 144, 32)).astype(np.float32)} for _ in "abc"],
    )


def indices() -> FieldCase:
    """`//` and `%` of flat indices in floats, as some exporters write them: FP16 has no 2049."""
    rng = np.random.default_rng(17)
    model = parse(
        """(float[1,840,8] features) => (float[1,8,6] found)
        <int64[2] flat = {1, 67200}, int64[1] k = {8}, float classes = {80},
        int64[1] last = {-1}, int64[3] repeats = {1, 1, 4}> {
        [scores] c = MatMul(features, w) [sigmoid] p = Sigmoid(c) [boxes] b = MatMul(features, v)
        [flatten] f = Reshape(p, flat) [topk] s, i = TopK<axis = 1>(f, k)
        [cast] x = Cast<to = 1>(i) [div] q = Div(x, classes) [floor] a = Floor(q)
        [mul] r = Mul(a, classes) [mod] m = Sub(x, r) [back] n = Cast<to = 7>(a)
        [unsqueeze] u = Unsqueeze(n, last) [tile] t = Tile(u, repeats)
        [gather] g = GatherElements<axis = 1>(b, t) [one] y = Unsqueeze(s, last)
        [two] z = Unsqueeze(m, last) [concat] found = Concat<axis = -1>(g, y, z) }"""
    )
    weights = {
        "w": rng.normal(0, 1.2, (8, 80)).astype(np.float32),
        "v": rng.normal(0, 1, (8, 4)).astype(np.float32),
    }
    return FieldCase(
        model=with_weights(model, weights),
        kept=["scores", "sigmoid", "topk", "div", "floor", "mul", "mod"],
        along=["flatten", "cast", "back", "one", "two", "concat"],
        samples=[{"features": rng.random((1, 840, 8), dtype=np.float32)} for _ in "abc"],
    )


def whole_norm() -> FieldCase:
    """A LayerNorm in pieces, whose squares overflow, and which AutoCast writes as one node."""
    rng = np.random.default_rng(4)
    model = parse(
        """(float[2,8,32] x) => (float[2,8,4] y) <float two = {2}, float eps = {1e-5}> {
        [in] a = MatMul(x, w) [mean] m = ReduceMean<axes = [-1]>(a) [sub] d = Sub(a, m)
        [pow] q = Pow(d, two) [variance] v = ReduceMean<axes = [-1]>(q) [add] e = Add(v, eps)
        [sqrt] r = Sqrt(e) [div] n = Div(d, r) [scale] s = Mul(n, g) [bias] h = Add(s, b)
        [out] y = MatMul(h, u) }"""
    )
    weights = {
        "w": rng.normal(0, 6e4, (32, 16)).astype(np.float32),
        "g": np.ones(16, np.float32),
        "b": rng.normal(0, 1, 16).astype(np.float32),
        "u": rng.normal(0, 0.3, (16, 4)).astype(np.float32),
    }
    pieces = ["mean", "sub", "pow", "variance", "add", "sqrt", "div", "scale", "bias"]
    return FieldCase(
        model=with_weights(model, weights),
        kept=["in", *pieces],
        along=[],
        samples=[{"x": rng.normal(0, 1, (2, 8, 32)).astype(np.float32)} for _ in "ab"],
    )


def sizes_in_floats() -> FieldCase:
    """A size computed in floats, of a length that FP16 does not have: no layer, and not low."""
    model = parse(
        """(float[1,4098] x) => (float[1,2049] y) <float two = {2}, int64 one = {1},
        int64[1] last = {-1}, int64[1] from = {0}, int64[1] axis = {1}> {
        [exp] e = Exp(x) [shape] s = Shape(x) [length] n = Gather(s, one)
        [cast] f = Cast<to = 1>(n) [half] h = Div(f, two) [floor] g = Floor(h)
        [back] i = Cast<to = 7>(g) [unsqueeze] u = Unsqueeze(i, from)
        [slice] c = Slice(e, from, u, axis) [log] y = Log(c) }"""
    )
    rng = np.random.default_rng(6)
    return FieldCase(
        model=model,
        kept=[],
        along=["cast", "half", "floor", "back"],
        samples=[{"x": rng.random((1, 4098), dtype=np.float32)}],
    )


FIELD_CASES: Mapping[str, Callable[[], FieldCase]] = {
    "clipped norm": clipped_norm,
    "labels": labels,
    "indices": indices,
    "whole norm": whole_norm,
    "sizes in floats": sizes_in_floats,
}
