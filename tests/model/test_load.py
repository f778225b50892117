"""Intake of well-formed models: every kind of file that exporters write."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import keeping, load_text, normal, parse, save, save_external, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import InputError, ModelError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.node_views import tensor_shapes
from precision_bisect.graphs.ort import output_types
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.judging.inputs.input_check import check_samples
from precision_bisect.judging.inputs.synthetic import synthetic_samples
from precision_bisect.layer_table import Exclusion
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from precision_bisect.protocols import Sample
from precision_bisect.settings.reading import parse_shapes


def newest_opset(most: int) -> int:
    """Return the newest opset up to `most` that onnx and ONNX Runtime know."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    for version in range(min(onnx.defs.onnx_opset_version(), most), 9, -1):
        opsets = [helper.make_opsetid("", version)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        with suppress(ModelError):
            output_types(proto, {})
            return version
    return 9


NEWEST_OPSET = newest_opset(26)
"""The newest released opset that both onnx and the ONNX Runtime on test accept."""


def both_ends(model: Model, feed: Sample, low: LowName = "fp16") -> tuple[Sample, Sample]:
    """Check that all-high equals the reference; return the reference and the all-low outputs."""
    (reference,) = reference_outputs(model, [feed], threads=1)
    backend = EmulatedBackend(model, low, threads=1)
    high = backend.evaluate(Plan.all_high(len(model.table.candidates)), feed)
    for name, array in reference.items():
        np.testing.assert_allclose(high[name], array, rtol=2e-6, atol=2e-6)
    return reference, backend.evaluate(Plan.of(()), feed)


def names_of(model: Model, exclusion: Exclusion | None) -> list[str]:
    """Return the names of the nodes with this exclusion, or the candidates for None."""
    return [layer.name for layer in model.table.layers if layer.exclusion is exclusion]


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("opset", range(9, NEWEST_OPSET + 1))
def test_every_opset_loads_lists_and_emulates(tmp_path: Path, opset: int, low: LowName) -> None:
    """A small network loads, lists its layers and is emulated at every opset from 9 on."""
    body = """(float[1,2,6,6] x) => (float[1,4] y) {
        [conv] c = Conv(x, w) [relu] r = Relu(c) [add] a = Add(r, b)
        [flat] f = Flatten(a) [mm] m = MatMul(f, v) [soft] y = Softmax(m) }"""
    model = with_weights(
        parse(body, opset=opset),
        {"w": normal(3, 2, 3, 3), "b": normal(3, 1, 1), "v": normal(48, 4)},
    )
    loaded = load_model(save(model, tmp_path))
    assert names_of(loaded, None) == ["conv", "relu", "add", "mm", "soft"]
    assert names_of(loaded, Exclusion.FOLLOWER) == ["flat"]
    reference, lowest = both_ends(loaded, {"x": normal(1, 2, 6, 6)}, low)
    assert 0 < np.abs(reference["y"] - lowest["y"]).max() < 0.1


def test_external_data_is_mapped_and_the_graph_stays_small(tmp_path: Path) -> None:
    """External weights become memory maps, and the proto holds stubs in their place."""
    proto = with_weights(
        parse("(float[1,256] x) => (float[1,256] y) { y = MatMul(x, w) }"),
        {"w": normal(256, 256)},
    )
    model = load_model(save_external(proto, tmp_path))
    assert isinstance(model.weights["w"], np.memmap)
    assert not model.weights["w"].flags.writeable
    assert model.proto.ByteSize() < 1000
    np.testing.assert_array_equal(model.weights["w"], normal(256, 256))
    both_ends(model, {"x": normal(1, 256)})


def test_the_switched_graph_stays_small(tmp_path: Path) -> None:
    """Neither the weights nor their rounded copies are in a proto, so 2 GiB is no limit."""
    from precision_bisect.backends.emulation.switched import switch
    from precision_bisect.graphs.quantization.scales import Scales
    from precision_bisect.precisions import Pair

    proto = with_weights(
        parse("(float[1,256] x) => (float[1,256] y) { h = MatMul(x, w) y = MatMul(h, w) }"),
        {"w": normal(256, 256)},
    )
    model = load_model(save(proto, tmp_path))
    switched = switch(model, Pair(low="fp16", high="fp32"), Scales())
    assert switched.proto.ByteSize() < 10_000
    assert sorted(switched.weights) == ["precision_bisect/fp16/w", "w"]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8e4m3fn", "int4"])
def test_external_weights_of_narrow_types(tmp_path: Path, kind: str) -> None:
    """External weights of types that numpy lacks are read as well."""
    types = {
        "bfloat16": TensorProto.BFLOAT16,
        "float16": TensorProto.FLOAT16,
        "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
        "int4": TensorProto.INT4,
    }
    proto = parse(
        "(float[1,64] x) => (float[1,64] y) "
        + (
            "{ v = DequantizeLinear(w, s) y = MatMul(x, v) }"
            if kind in ("int4", "float8e4m3fn")
            else "{ v = Cast<to = 1>(w) y = MatMul(x, v) }"
        ),
        opset=21,
        ir=10,
    )
    values = np.random.default_rng(0).integers(-7, 7, 64 * 64).astype(np.float32)
    proto.graph.initializer.append(helper.make_tensor("w", types[kind], [64, 64], values))
    proto.graph.initializer.append(helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]))
    raw = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(raw, "w"))
    model = load_model(save_external(proto, tmp_path))
    scale = 0.5 if kind in ("int4", "float8e4m3fn") else 1.0
    reference, _ = both_ends(model, {"x": normal(1, 64)})
    expected = normal(1, 64) @ (values.reshape(64, 64) * scale)
    np.testing.assert_allclose(reference["y"], expected, rtol=1e-4, atol=1e-4)


def test_unnamed_and_repeated_names_become_unique(tmp_path: Path) -> None:
    """Unnamed nodes are called after their output, repeated names are numbered, both marked."""
    model = load_text(
        "(float[2] x) => (float[2] y)"
        " { a = Relu(x) [n] b = Neg(a) [n] c = Neg(b) [m] y = Exp(c) }",
        tmp_path,
    )
    assert list(model.table.names) == ["node_of_a", "n", "n_0", "m"]
    assert [layer.named_in_model for layer in model.table.layers] == [False, False, False, True]
    both_ends(model, {"x": normal(2)})


def test_dynamic_shapes(tmp_path: Path) -> None:
    """One session of a model with symbolic dimensions takes inputs of several shapes."""
    model = load_text("(float[batch, n] x) => (float[batch, n] y) { y = Softmax(x) }", tmp_path)
    assert model.inputs[0].shape == ("batch", "n")
    for shape in ((1, 3), (4, 7)):
        both_ends(model, {"x": normal(*shape)})


def test_initializers_that_are_inputs_are_constants(tmp_path: Path) -> None:
    """Before IR version 4 weights had to be inputs as well; they are no inputs to feed."""
    body = "(float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.5, 2.5}> { y = Mul(x, w) }"
    model = load_model(save(parse(body, opset=9, ir=3), tmp_path))
    assert [spec.name for spec in model.inputs] == ["x"]
    both_ends(model, {"x": normal(2)})


def test_control_flow_is_one_unit_that_sees_stored_values(tmp_path: Path) -> None:
    """An If body captures a layer's output as that layer stores it, rounded where it runs low."""
    model = load_text(
        """(float[1] x, bool c) => (float[1] y) {
            k = Constant<value = float[1] {0.00333}>()
            [square] s = Mul(x, x)
            [if] y = If (c) <
                then_branch = t () => (float[1] a) { a = Mul(s, k) },
                else_branch = e () => (float[1] b) { b = Neg(s) }>
        }""",
        tmp_path,
    )
    assert names_of(model, Exclusion.CONTROL_FLOW) == ["if"]
    assert list(model.table.names) == ["square"]
    feed = {"x": np.array([300], np.float32), "c": np.array(True)}
    reference, lowest = both_ends(model, feed)
    assert np.isfinite(reference["y"]).all()
    assert np.isinf(lowest["y"]).all()


def test_loop_and_scan_bodies(tmp_path: Path) -> None:
    """Loop and Scan run, with layers before and after them switched."""
    model = load_text(
        """(float[2] x) => (float[2] y) {
            n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>()
            a = Exp(x)
            l = Loop (n, c, a) <body = b (int64 i, bool k, float[2] s)
                => (bool k2, float[2] s2) { k2 = Identity(k) s2 = Add(s, a) }>
            z = Constant<value = int64[1] {0}>()
            u = Unsqueeze(l, z)
            z2, q = Scan (l, u) <num_scan_inputs = 1, body = d (float[2] p, float[2] e)
                => (float[2] p2, float[2] e2) { p2 = Add(p, e) e2 = Mul(p, e) }>
            y = Sqrt(z2) }""",
        tmp_path,
    )
    assert len(names_of(model, Exclusion.CONTROL_FLOW)) == 2
    assert len(model.table.candidates) == 2
    both_ends(model, {"x": normal(2)})


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    """The nodes inside a local function are layers of their own."""
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2] x) => (float[2] y) { [call] y = local.act(x) }
        <domain: "local", opset_import: ["": 17]>
        act (p) => (q) { t = Sigmoid(p) q = Mul(p, t) }"""
    model = load_model(save(onnx.parser.parse_model(text), tmp_path))
    assert [layer.op_type for layer in model.table.candidates] == ["Sigmoid", "Mul"]
    both_ends(model, {"x": normal(2)})


def test_quantized_models(tmp_path: Path) -> None:
    """Q/DQ nodes keep their types, and the layer between them is switched."""
    model = load_text(
        """(float[1,4] x) => (float[1,4] y)
            <float s = {0.1}, int8 z = {0}, float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
            [q] a = QuantizeLinear(x, s, z) [dq] b = DequantizeLinear(a, s, z)
            [mm] c = MatMul(b, w) [q2] d = QuantizeLinear(c, s, z)
            [dq2] y = DequantizeLinear(d, s, z) }""",
        tmp_path,
    )
    assert names_of(model, Exclusion.QUANTIZATION) == ["q", "dq", "q2", "dq2"]
    assert list(model.table.names) == ["mm"]
    both_ends(model, {"x": normal(1, 4)})


def test_optional_inputs_and_outputs(tmp_path: Path) -> None:
    """Empty names among inputs and outputs stay empty."""
    body = """(float[1,1,3] x) => (float[1,1,3] y, float[1,1,2] h) <float top = {0.5}> {
        [clip] y = Clip(x, , top)
        [lstm] unused, h = LSTM<hidden_size = 2>(x, w, r) }"""
    proto = with_weights(parse(body), {"w": normal(1, 8, 3), "r": normal(1, 8, 2)})
    proto.graph.node[1].output[0] = ""
    reference, lowest = both_ends(load_model(save(proto, tmp_path)), {"x": normal(1, 1, 3)})
    assert np.abs(reference["h"] - lowest["h"]).max() > 0


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("(float[4] x) => (float[2] a, float[2] b) { t = Exp(x) a, b = Split(t) }", {}),
        ("(float[4] x) => (float[2] a, int64[2] b) { k = Constant<value = int64[1] {2}>()"
         " a, b = TopK(x, k) }", {}),
        ("(float[4] x) => (float[4] a, float[1] b, float[1] c)"
         " { a, b, c = LayerNormalization(x, w) }", {"w": normal(4)}),
        ("(float[1,4] x) => (float[1,4] y) { y = BatchNormalization(x, w, w, w, v) }",
         {"w": normal(4), "v": np.abs(normal(4))}),
        ("(float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Neg(y) }", {}),
        ("(float[4] x) => (float[2,2] y) { t = Exp(x) y = Reshape(t, s) }",
         {"s": np.array([2, 2])}),
        ("(float[4] x) => (float[4] x, float[4] y) { y = Exp(x) }", {}),
    ],
    ids=["split", "topk", "layernorm3", "batchnorm", "output-read", "follower-out", "input-out"],
)  # fmt: skip
def test_output_shapes_of_graphs(
    tmp_path: Path, body: str, weights: dict[str, np.ndarray]
) -> None:
    """Several outputs, outputs read again, made by a follower, or an input itself."""
    model = load_model(save(with_weights(parse(body), weights), tmp_path))
    x = normal(1, 4) if "[1,4]" in body else normal(4)
    reference, lowest = both_ends(model, {"x": x})
    assert list(reference) == list(lowest)


def test_resize_scales_stay_in_full_precision(tmp_path: Path) -> None:
    """The scales of a Resize are settings: 2049 rows would be 2048 in FP16."""
    body = """(float[1,1,1,1] x) => (float[1,1,h,1] y)
        <float[4] scales = {1, 1, 2049, 1}> { y = Resize(x, , scales) }"""
    model = load_text(body, tmp_path)
    _, lowest = both_ends(model, {"x": np.ones((1, 1, 1, 1), np.float32)})
    assert lowest["y"].shape == (1, 1, 2049, 1)


def test_computed_resize_scales_stay_in_full_precision(tmp_path: Path) -> None:
    """Scales that a layer computes are read as that layer stores them, not rounded again."""
    body = """(float[1,1,1,1] x, float[4] s) => (float[1,1,h,1] y)
        { [scale] t = Mul(s, one) [resize] y = Resize(x, , t) }"""
    proto = with_weights(parse(body), {"one": np.ones(4, np.float32)})
    model = load_model(save(proto, tmp_path))
    feed = {"x": np.ones((1, 1, 1, 1), np.float32), "s": np.array([1, 1, 2049, 1], np.float32)}
    both_ends(model, feed)
    backend = EmulatedBackend(model, threads=1)
    assert backend.evaluate(Plan.of([0]), feed)["y"].shape == (1, 1, 2049, 1)


def test_sequences_and_strings_pass_through(tmp_path: Path) -> None:
    """Sequence nodes and string tensors are left alone, also as inputs of the model."""
    model = load_text(
        """(float[2] x, string[2] s) => (float[4] y, bool[2] z) {
            e = Exp(x) q = SequenceConstruct(e, x) y = ConcatFromSequence<axis = 0>(q)
            z = Equal(s, s) }""",
        tmp_path,
        opset=19,
    )
    assert names_of(model, Exclusion.NOT_TENSOR) == ["node_of_q"]
    both_ends(model, {"x": normal(2), "s": np.array(["a", "b"], object)})


def test_contrib_operators_stay_high_and_do_not_hide_what_follows(tmp_path: Path) -> None:
    """Layers after an operator of ONNX Runtime's own domain are candidates all the same."""
    model = load_text(
        "(float[4] x) => (float[4] y) { [g] a = com.microsoft.Gelu(x) [e] b = Exp(a)"
        " [s] y = Sqrt(b) }",
        tmp_path,
        domains='"com.microsoft": 1',
    )
    assert names_of(model, Exclusion.CUSTOM) == ["g"]
    assert list(model.table.names) == ["e", "s"]
    both_ends(model, {"x": normal(4)})


def test_sparse_initializers_are_weights(tmp_path: Path) -> None:
    """A sparse weight is rounded with the layer that reads it, like a dense one."""
    proto = parse("(float[2,3] x) => (float[2,2] y) { [mm] y = MatMul(x, w) }")
    values = onnx.numpy_helper.from_array(np.array([1.0001, 2.0001], np.float32), "w")
    places = onnx.numpy_helper.from_array(np.array([1, 4], np.int64), "places")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 2]))
    reference, lowest = both_ends(
        load_model(save(proto, tmp_path)), {"x": np.ones((2, 3), np.float32)}
    )
    np.testing.assert_allclose(reference["y"], [[2.0001, 1.0001]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(lowest["y"], [[2, 1]] * 2)


def test_sparse_constants_are_weights(tmp_path: Path) -> None:
    """ONNX Runtime gives a sparse constant as no array, and TensorRT does not read one."""
    proto = parse(
        "(float[2,3] x) => (float[2,2] y) { w = Constant<value_int = 1>() y = MatMul(x, w) }"
    )
    values = numpy_helper.from_array(np.array([1.0001, 2.0001], np.float32), "w")
    places = numpy_helper.from_array(np.array([[0, 1], [2, 0]], np.int64), "places")
    attribute = proto.graph.node[0].attribute[0]
    attribute.CopyFrom(
        helper.make_attribute("sparse_value", helper.make_sparse_tensor(values, places, [3, 2]))
    )
    model = load_model(save(proto, tmp_path))
    reference, lowest = both_ends(model, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_allclose(reference["y"], [[2.0001, 1.0001]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(lowest["y"], [[2, 1]] * 2)
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(keeping(model)).proto
    assert not any(
        a.HasField("sparse_tensor") for node in typed.graph.node for a in node.attribute
    )


def test_unused_weights_are_left_out(tmp_path: Path) -> None:
    """A large initializer that nothing reads neither loads nor stops ONNX Runtime."""
    model = load_text("(float[4] x) => (float[4] y) { y = Mul(x, x) }", tmp_path)
    proto = onnx.load(model.path)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(5000, np.float32), "unused"))
    onnx.save(proto, model.path)
    loaded = load_model(model.path)
    assert {} == loaded.weights
    feed = {"x": np.full(4, 300, np.float32)}
    (outputs,) = reference_outputs(loaded, [feed])
    assert 90000 == outputs["y"][0]


def test_negative_dimensions_are_dynamic(tmp_path: Path) -> None:
    """Sizes of -1 and "?", as Paddle2ONNX writes them, are unknown, also in what is written."""
    proto = parse("(float[1,3,5,5] x) => (float[1,3,5,5] y) { a = Exp(x) y = Add(a, x) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1] * 4))
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value = -1
        dims[2].dim_param = dims[3].dim_param = "?"
    model = load_model(save(proto, tmp_path))
    assert (None, 3, None, None) == model.inputs[0].shape == model.outputs[0].shape
    shapes = parse_shapes(["x:2x3x4x6"])
    (sample,) = check_samples(model, synthetic_samples(model, shapes, 1, seed=0))
    reference, _ = both_ends(model, sample)
    assert (2, 3, 4, 6) == reference["y"].shape == tensor_shapes(model, {"x": (2, 3, 4, 6)})["a"]
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(keeping(model)).proto
    (x,) = typed.graph.input
    sizes = [dim.WhichOneof("value") for dim in x.type.tensor_type.shape.dim]
    assert [None, "dim_value", None, None] == sizes
    with pytest.raises(InputError, match=r"dynamic shape \(\?, 3, \?, \?\)"):
        synthetic_samples(model, {}, 1, seed=0)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("a.pt", "torch.onnx.export(model"), ("a.h5", "python -m tf2onnx.convert"), ("a", "again")],
)
def test_other_formats_say_how_to_export(tmp_path: Path, name: str, hint: str) -> None:
    """A checkpoint of PyTorch or TensorFlow is told by its ending."""
    (tmp_path / name).write_bytes(b"PK\x03\x04 weights")
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / name)
    assert hint in caught.value.one_line()
