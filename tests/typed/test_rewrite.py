"""The typed rewriter on small models, one rule at a time."""

from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models import keeping, load_text, normal, parse, save, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import BF16, LOW_TYPES
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from typed_graphs import casts, checked, run_as_written, simulated, types_of

LOWEST = Plan.of(())


def test_settings_stay_fp32(tmp_path: Path) -> None:
    """The scales of a Resize are FP32 in a low Resize, whoever computes them."""
    model = load_text(
        """(float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, n, m] y) {
            [s] t = Abs(s) [r] y = Resize(x, , t) }""",
        tmp_path,
    )
    typed = checked(model, LOWEST)
    types = types_of(typed.proto)
    (resize,) = (n for n in typed.proto.graph.node if n.name == "r")
    assert [TensorProto.FLOAT16, TensorProto.FLOAT] == [types[n] for n in resize.input if n]
    assert TensorProto.FLOAT16 == types[resize.output[0]]


@pytest.mark.parametrize("low", HALF_NAMES)
def test_pow_and_normalizations_take_their_weights_along(tmp_path: Path, low: LowName) -> None:
    """Exponents, scales, biases, means and variances are low with the layer, as TensorRT wants."""
    proto = parse(
        """(float[1, 2, 4] x) => (float[1, 2, 4] y) <float e = {1.5}> {
            a = BatchNormalization(x, v, v, v, v) b = LayerNormalization(a, w, w)
            c = InstanceNormalization(b, v, v) y = Pow(c, e) }"""
    )
    weights = {"v": np.array([1, 2], np.float32), "w": np.arange(4, dtype=np.float32)}
    model = load_model(save(with_weights(proto, weights), tmp_path))
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    assert {} == writer.not_low
    typed = checked(model, LOWEST, LOW_TYPES[low])
    types = types_of(typed.proto)
    read = {types[n] for node in typed.proto.graph.node[1:-1] for n in node.input}
    assert {LOW_TYPES[low].onnx_type} == read


def test_layers_without_a_low_form_say_why(tmp_path: Path) -> None:
    """They stay FP32 in every plan, each with its reason."""
    model = load_text(
        """(float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y) {
            [c] a = Celu(x) [v] b = MeanVarianceNormalization(a)
            s = Shape(a) [f] f = ConstantOfShape<value = float[1] {0.1}>(s)
            [m] y = Mul(b, f) }""",
        tmp_path,
    )
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    assert {
        "c": "Celu takes no fp16 as its input 'X' at opset 17",
        "v": "ONNX defines MeanVarianceNormalization with an FP32 constant inside",
        "f": "no low input decides the type of what ConstantOfShape returns",
    } == writer.not_low
    assert ["b/fp16", "f/fp16", "y/fp32"] == casts(writer.write(LOWEST))


def test_bf16_takes_models_to_an_opset_that_has_it(tmp_path: Path) -> None:
    """Convolutions take bfloat16 from opset 22 on; the model goes there, with its layers."""
    proto = parse(
        """(float[1, 1, 4] x) => (float[1, 4] y) {
            [a] a = Conv(x, w) [r] r = ReduceMean<axes = [1], keepdims = 0>(a)
            u = Unsqueeze<axes = [0]>(r) [b] b = Neg(u) y = Squeeze<axes = [0]>(b) }""",
        opset=12,
    )
    model = load_model(save(with_weights(proto, {"w": normal(1, 1, 1)}), tmp_path))
    writer = TypedWriter(model, Pair(low="bf16", high="fp32"))
    assert {} == writer.not_low
    typed = checked(model, keeping(model, "r"), BF16)
    assert [22] == [o.version for o in typed.proto.opset_import]
    in_fp16 = TypedWriter(model, Pair(low="fp16", high="fp32")).write(LOWEST)
    assert 12 == in_fp16.proto.opset_import[0].version
    path = model.path.with_name("typed.onnx")
    feed = {"x": normal(1, 1, 4)}
    found = run_as_written(simulated(onnx.load(path)), feed)
    expected = EmulatedBackend(model, "bf16").evaluate(keeping(model, "r"), feed)
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_names_cannot_collide(tmp_path: Path) -> None:
    """A model that uses the names we would give gets others, its own ones stay."""
    taken = "precision_bisect/cast/x/fp16"
    proto = parse("(float[2] x) => (float[2] y) { [a] t = Exp(x) [b] y = Neg(t) }")
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = taken
    proto.graph.node[1].name = "precision_bisect/cast/y/fp32"
    model = load_model(save(proto, tmp_path))
    typed = checked(model, LOWEST)
    assert [f"{taken}_", "a", "precision_bisect/cast/y/fp32", "precision_bisect/cast/y/fp32_"] == [
        node.name for node in typed.proto.graph.node
    ]
    assert [f"{taken}_"] == list(typed.proto.graph.node[0].output)


def test_told_types_are_corrected(tmp_path: Path) -> None:
    """Types that the file tells of inner tensors follow the plan."""
    proto = parse("(float[2] x) => (float[2] y) { a = Exp(x) y = Neg(a) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [2]))
    model = load_model(save(proto, tmp_path))
    (told,) = checked(model, LOWEST).proto.graph.value_info
    assert (TensorProto.FLOAT16, 2) == (
        told.type.tensor_type.elem_type,
        told.type.tensor_type.shape.dim[0].dim_value,
    )


MIXED = """(float16[4] x, bool c) => (float16[4] y, float[4] z) <
    float e = {0.1}, int64[2] shape = {2, 2}, int64[1] flat = {-1}> {
    [low] a = Mul(x, w) [moved] b = Reshape(a, shape) f = Cast<to = 1>(b)
    [square] s = Mul(f, f) [add] d = Add(s, e) [root] r = Sqrt(d)
    [back] m = Reshape(r, flat) v = Cast<to = 1>(w) [scale] t = Div(m, v)
    h = Cast<to = 10>(t) [last] y = Add(h, x)
    i = If (c) <
        then_branch = yes () => (float[4] p) {
            l = Cast<to = 10>(t) q = Mul(l, l) p = Cast<to = 1>(q) },
        else_branch = no () => (float[4] n) { n = Neg(t) }>
    [end] z = Mul(i, t) }"""
"""Parts in FP16, in the main graph and in a branch, a weight in FP16 that FP32 layers read."""


def test_a_mixed_model_computes_as_predicted_and_keeps_its_interface(tmp_path: Path) -> None:
    """Every plan of a file that has FP16 types gives what the emulator says, in its interface.

    So do copies of it in which a round trip stands for each 16-bit type.
    """
    weights = {"w": np.array([1.1, 2, 300, 4], np.float16)}
    model = load_model(save(with_weights(parse(MIXED), weights), tmp_path))
    names = ["low", "square", "add", "root", "scale", "last", "end"]
    assert names == list(model.table.names)
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    backend = EmulatedBackend(model, threads=1)
    feed = {"x": np.array([0.5, 1.25, -3, 200], np.float16).astype(np.float32)}
    for count in (0, 1, 2, 6, 7):
        for kept in combinations(range(7), count):
            typed = writer.write(Plan.of(kept), guard_islands=False).proto
            onnx.checker.check_model(typed, full_check=True)
            ends = [
                v.type.tensor_type.elem_type for v in (*typed.graph.input, *typed.graph.output)
            ]
            assert [10, 9, 10, 1] == ends
            for taken in (np.array(True), np.array(False)):
                run = {**feed, "c": taken}
                found = run_as_written(_without_halves(simulated(typed)), run)
                expected = backend.evaluate(Plan.of(kept), run)
                for name in ("y", "z"):
                    np.testing.assert_array_equal(found[name], expected[name])


def _without_halves(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph that takes and gives FP32, and rounds inside branches what is FP16 there."""
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in proto.graph.node:
        for branch in (each.g for each in node.attribute if each.HasField("g")):
            inner = onnx.helper.make_model(branch, opset_imports=proto.opset_import)
            inner.graph.input.add().CopyFrom(
                helper.make_tensor_value_info("t", TensorProto.FLOAT, [4])
            )
            branch.CopyFrom(simulated(inner).graph)
            del branch.input[:]
    return proto
