"""Which inputs give shapes by their values: the rule is TensorRT's own."""

from pathlib import Path

import pytest

from models import parse, save
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.types import shape_inputs

ZERO = "z = Constant<value_ints=[0]>() "
MODELS = {
    "Reshape": "(float[8,8] x, int64[2] s) => (float[M,N] y) { y = Reshape(x, s) }",
    "Expand": "(float[8,1] x, int64[2] s) => (float[M,N] y) { y = Expand(x, s) }",
    "Tile": "(float[8,8] x, int64[2] s) => (float[M,N] y) { y = Tile(x, s) }",
    "Pad": "(float[8,8] x, int64[4] s) => (float[M,N] y) { y = Pad(x, s) }",
    "TopK": "(float[8,8] x, int64[1] s) => (float[8,K] y, int64[8,K] i) { y, i = TopK(x, s) }",
    "Resize": "(float[1,3,8,8] x, int64[4] s) => (float[A,B,C,D] y) { y = Resize(x, , , s) }",
    "Slice": f"(float[8,8] x, int32[1] s) => (float[M,8] y) {{ {ZERO} t = Cast<to=7>(s)"
    " y = Slice(x, z, t, z) }",
    "Range": "(int64 s) => (int64[N] y) { z = Constant<value_int=0>() o = Constant<value_int=1>()"
    " y = Range(z, s, o) }",
    "Split": "(float[8,8] x, int64[2] s) => (float[M,8] y, float[N,8] q)"
    " { y, q = Split<axis=0>(x, s) }",
    "filled": "(float[8,8] x, int64[2] s) => (float[8,8] y) { q = ConstantOfShape(s)"
    " y = Add(x, q) }",
    "computed": "(float[1,3,8,8] x, int64[2] s) => (float[A,B,C,D] y) { h = Shape(x)"
    " k = Constant<value_ints=[0,1]>() b = Gather(h, k) d = Add(s, s) t = Concat<axis=0>(b, d)"
    " y = Resize(x, , , t) }",
    "data as well": f"(float[8,8] x, int64[1] s) => (float[M,8] y, float[8,8] q) {{ {ZERO}"
    " y = Slice(x, z, s, z) c = Cast<to=1>(s) q = Add(x, c) }",
    "indices": "(float[8,8] x, int64[1] i) => (float[1,8] y) { y = Gather(x, i) }",
    "condition": "(float[8] x, bool c) => (float[8] y) { y = If(c) <"
    "then_branch = t () => (float[8] a) { a = Relu(x) },"
    "else_branch = f () => (float[8] b) { b = Tanh(x) }> }",
    "only its shape": "(float[8,8] x, int64[4] i) => (float[M,N] y) { q = Shape(i)"
    " o = Constant<value_ints=[-1]>() t = Concat<axis=0>(q, o) y = Reshape(x, t) }",
    "inside an If": "(float[8,8] x, bool c, int64[2] s) => (float[M,N] y) { y = If(c) <"
    "then_branch = t () => (float[M,N] a) { a = Reshape(x, s) },"
    "else_branch = f () => (float[M,N] b) { b = Tanh(x) }> }",
}


@pytest.mark.parametrize("body", MODELS.values(), ids=MODELS)
def test_the_rule_says_what_tensorrt_says(tmp_path: Path, body: str) -> None:
    """TensorRT-RTX reads the same inputs for shapes."""
    from rtx import LOG, trt

    path = save(parse(body), tmp_path)
    network = trt.Builder(LOG).create_network(0)
    parser = trt.OnnxParser(network, LOG)
    assert parser.parse_from_file(str(path)), parser.get_error(0).desc()
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    model = load_model(path)
    assert {each.name for each in tensors if each.is_shape_tensor} == shape_inputs(
        model.proto.graph, model.inputs
    )


@pytest.mark.parametrize("given", ["int64[K] s", "float[2] s"])
def test_what_has_no_known_number_of_integers_is_none(tmp_path: Path, given: str) -> None:
    """TensorRT refuses it: its profile has a fixed number of integers."""
    cast = "t = Cast<to=7>(s)"
    body = f"(float[8,8] x, {given}) => (float[M,N] y) {{ {cast} y = Reshape(x, t) }}"
    model = load_model(save(parse(body), tmp_path))
    assert frozenset() == shape_inputs(model.proto.graph, model.inputs)
