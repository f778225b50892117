"""INT8 and FP8 layers in typed graphs: what is quantized, how, and what becomes of the rest."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from models import keeping, load_text, normal, parse, save, save_external, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import ModelError
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import QUANTIZED
from precision_bisect.graphs.quantization.scales import Scales, WeightScale, dequantized, quantized
from precision_bisect.graphs.typed import typed_graph
from precision_bisect.graphs.typed.model_files import TypedFolder, save_typed
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import HIGH_NAMES, Form, HighName, Pair, QuantizedName
from typed_graphs import run_as_written, types_of

LOWEST = Plan.of(())
LIMITS = {"int8": 127.0, "fp8": 448.0}
TWO_PRODUCTS = """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
    [r] a = Relu(x) [c] b = Conv<pads = [1, 1, 1, 1]>(a, w, k) [m] c = MatMul(a, v)
    [d] y = Add(b, c) }"""
WEIGHTS = {"w": normal(4, 4, 3, 3), "k": normal(4, seed=1), "v": normal(8, 8, seed=2)}


def per_channel(weight: np.ndarray, axis: int, low: QuantizedName) -> WeightScale:
    """Return scales, exact in BF16 and FP16, up to which a weight's channels reach."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight).max(axis=others) / LIMITS[low]
    return WeightScale(axis=axis, values=largest.astype(ml_dtypes.bfloat16).astype(np.float32))


def scales(low: QuantizedName) -> Scales:
    """Return the scales of the two products."""
    weights = {name: per_channel(WEIGHTS[name], axis, low) for name, axis in (("w", 0), ("v", 1))}
    return Scales(activations={"a": 2.0**-5}, weights=weights)


def two_products(folder: Path, opset: int = 17) -> Model:
    """Return a model with a convolution and a product that read the same tensor."""
    return load_model(save(with_weights(parse(TWO_PRODUCTS, opset=opset), WEIGHTS), folder))


def written(
    model: Model, low: QuantizedName, high: HighName, plan: Plan
) -> tuple[TypedGraph, onnx.ModelProto]:
    """Return a typed graph, and as it is read back from a file that passes the checker."""
    typed = TypedWriter(model, Pair(low=low, high=high), scales(low)).write(plan)
    path = model.path.with_name("typed.onnx")
    save_typed(typed, path)
    onnx.checker.check_model(path, full_check=True)
    return typed, onnx.load(path)


def ops(proto: onnx.ModelProto) -> list[str]:
    """Return the operators of a graph, in its order."""
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("low", QUANTIZED)
def test_a_tensor_is_quantized_once_for_all_who_read_it(
    tmp_path: Path, low: QuantizedName
) -> None:
    """Two readers share one pair; a kept reader beside them reads the value itself."""
    model = two_products(tmp_path)
    _, both = written(model, low, "fp32", LOWEST)
    assert (1, 3) == (ops(both).count("QuantizeLinear"), ops(both).count("DequantizeLinear"))
    _, one = written(model, low, "fp32", keeping(model, "m"))
    assert (1, 2) == (ops(one).count("QuantizeLinear"), ops(one).count("DequantizeLinear"))
    (kept,) = (node for node in one.graph.node if node.name == "m")
    assert ["a", "v"] == list(kept.input)
    none = written(model, low, "fp32", keeping(model, "c", "m"))[1]
    assert ops(model.proto) == ops(none)


@pytest.mark.parametrize("high", HIGH_NAMES)
@pytest.mark.parametrize("low", QUANTIZED)
def test_what_lies_round_a_low_layer_has_the_high_type(
    tmp_path: Path, low: QuantizedName, high: HighName
) -> None:
    """Operands come dequantized in the high type; bias and output are of it, too."""
    model = pin_formless(two_products(tmp_path), Pair(low=low, high=high))
    _, proto = written(model, low, high, LOWEST)
    types, nodes = types_of(proto), {node.name: node for node in proto.graph.node}
    expected = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}
    wanted = expected.get(high, TensorProto.BFLOAT16)
    for name in ("c", "m"):
        assert {wanted} == {types[n] for n in (*nodes[name].input, *nodes[name].output)}
    stored = {t.name: t.data_type for t in proto.graph.initializer if "/weight/" in t.name}
    assert QUANTIZED[low].onnx_type == stored[f"precision_bisect/weight/w/{low}"]
    assert "w" not in {t.name for t in proto.graph.initializer}
    least = {"int8": 17, "fp8": 19}[low] if high == "fp32" else 19
    assert least <= proto.opset_import[0].version
    assert onnx.helper.find_min_ir_version_for(list(proto.opset_import)) <= proto.ir_version


def test_an_fp32_value_is_quantized_without_a_cast(tmp_path: Path) -> None:
    """Between FP16 layers the graph's input is quantized as it comes, and used in FP16 after."""
    model = load_text(
        """(float[4, 8] x) => (float[4, 8] y) <float[8, 8] v = {}> {
            [m] a = MatMul(x, v) [n] y = Relu(a) }""".replace(
            "{}", "{" + ",".join(["0.5"] * 64) + "}"
        ),
        tmp_path,
    )
    pair = Pair(low="int8", high="fp16")
    weight = WeightScale(axis=1, values=np.full(8, 2.0**-8, np.float32))
    writer = TypedWriter(model, pair, Scales(activations={"x": 0.25}, weights={"v": weight}))
    typed = writer.write(LOWEST)
    kinds = {"QuantizeLinear": 1, "DequantizeLinear": 2, "MatMul": 1, "Relu": 1, "Cast": 1}
    assert kinds == {kind: ops(typed.proto).count(kind) for kind in ops(typed.proto)}
    types = types_of(typed.proto)
    (quantize,) = (n for n in typed.proto.graph.node if n.op_type == "QuantizeLinear")
    assert ["x", TensorProto.FLOAT] == [quantize.input[0], types[quantize.input[1]]]


@pytest.mark.parametrize("external", [False, True], ids=["in one file", "beside it"])
@pytest.mark.parametrize("low", QUANTIZED)
def test_weights_are_stored_as_they_are_quantized(
    tmp_path: Path, low: QuantizedName, external: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per channel, along whichever axis, also where a weight is written in many pieces."""
    monkeypatch.setattr(typed_graph, "_CHUNK", 7)
    model = load_model(save_external(with_weights(parse(TWO_PRODUCTS), WEIGHTS), tmp_path))
    typed = TypedWriter(model, Pair(low=low, high="fp32"), scales(low)).write(LOWEST)
    path = tmp_path / "typed.onnx"
    if external:
        path = TypedFolder(tmp_path / "typed").save(typed, "typed.onnx")
    else:
        save_typed(typed, path)
    found = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for name, scale in scales(low).weights.items():
        expected = quantized(WEIGHTS[name], scale, QUANTIZED[low])
        np.testing.assert_array_equal(
            found[f"precision_bisect/weight/{name}/{low}"].view(np.int8), expected.view(np.int8)
        )
        error = np.abs(dequantized(expected, scale) - WEIGHTS[name]).max()
        assert error < 0.1 * np.abs(WEIGHTS[name]).max()


@pytest.mark.parametrize("low", QUANTIZED)
def test_onnx_runtime_computes_what_the_emulator_does(tmp_path: Path, low: QuantizedName) -> None:
    """Between FP32 layers the graph itself runs on the CPU, and means what the emulator means.

    Up to the order of sums: the emulator's convolutions are blocked ones.
    """
    pair = Pair(low=low, high="fp32")
    model = pin_formless(two_products(tmp_path), pair)
    feed = {"x": normal(1, 4, 8, 8, seed=5)}
    emulator = EmulatedBackend(model, low, 1, "fp32", scales(low))
    exact = run_as_written(written(model, low, "fp32", keeping(model, "c", "m"))[1], feed)["y"]
    for kept in ((), ("c",), ("m",)):
        plan = keeping(model, *kept)
        (found,) = run_as_written(written(model, low, "fp32", plan)[1], feed).values()
        np.testing.assert_allclose(found, emulator.evaluate(plan, feed)["y"], atol=1e-5)
        assert 1e-3 < np.abs(found - exact).max() < 1.0


def test_a_computed_weight_is_quantized_in_the_graph(tmp_path: Path) -> None:
    """What nodes make of constants is quantized per channel where it is read."""
    model = load_text(
        """(float[2, 3] x) => (float[2, 3] y) <float[3, 3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            t = Transpose(v) [m] y = MatMul(x, t) }""",
        tmp_path,
    )
    scale = WeightScale(axis=1, values=np.array([0.25, 0.5, 1.0], np.float32))
    known = Scales(activations={"x": 0.5}, weights={"t": scale})
    typed = TypedWriter(model, Pair(low="int8", high="fp32"), known).write(LOWEST)
    path = tmp_path / "typed.onnx"
    save_typed(typed, path)
    onnx.checker.check_model(path, full_check=True)
    assert (2, 2) == tuple(map(ops(typed.proto).count, ("QuantizeLinear", "DequantizeLinear")))
    (found,) = run_as_written(onnx.load(path), {"x": np.ones((2, 3), np.float32)}).values()
    np.testing.assert_array_equal([[6.0, 15.0, 24.0]] * 2, found)


def test_layers_that_cannot_be_quantized_say_why(tmp_path: Path) -> None:
    """No kernel, no scale, or no form in the high type: each has its reason."""
    model = two_products(tmp_path)
    some = Scales(activations={"a": 0.1}, weights={"w": scales("int8").weights["w"]})
    assert {
        "r": "no INT8 kernel for Relu",
        "m": "its input 'v' has no calibrated scale",
        "d": "no INT8 kernel for Add",
    } == TypedWriter(model, Pair(low="int8", high="fp32"), some).not_low
    proto = parse("(float[1, 4, 8, 8] x) => (float[1, 4, n, m] y) { [t] y = ConvTranspose(x, w) }")
    turned = load_model(save(with_weights(proto, {"w": normal(4, 4, 2, 2)}), tmp_path))
    known = Scales(
        activations={"x": 0.1}, weights={"w": per_channel(normal(4, 4, 2, 2), 1, "int8")}
    )
    pair = Pair(low="int8", high="bf16")
    assert {} == TypedWriter(turned, pair, known).not_low


def test_a_type_that_needs_a_newer_opset_says_so(tmp_path: Path) -> None:
    """Where onnx cannot take the model there, the message names the types and the opset."""
    body = """(float[2, 2] x, bool b) => (float[2, 2] y) <float[2, 2] v = {1, 2, 3, 4}> {
        [m] a = MatMul(x, v)
        y = If(b)< then_branch = t () => (float[2, 2] p) { p = Hardmax<axis = 1>(a) },
                   else_branch = e () => (float[2, 2] q) { q = Abs(a) }> }"""
    model = load_text(body, tmp_path, opset=11)
    with pytest.raises(ModelError, match="needs 19; onnx converts Hardmax wrongly"):
        TypedWriter(model, Pair(low="int8", high="fp16"))


def test_a_rung_above_keeps_its_type(tmp_path: Path) -> None:
    """A layer that is fixed to FP32 reads and writes it between FP16 and INT8 ones."""
    pair = Pair(low="int8", high="fp16")
    model = two_products(tmp_path)
    model = pin(model, {LayerName("d"): "another rung"}, Form(stored="fp32"))
    model = pin_formless(model, pair)
    _, proto = written(model, "int8", "fp16", keeping(model, "m"))
    types, nodes = types_of(proto), {node.name: node for node in proto.graph.node}
    assert {TensorProto.FLOAT} == {types[n] for n in (*nodes["d"].input, *nodes["d"].output)}
    for name in ("r", "m", "c"):
        assert TensorProto.FLOAT16 == types[nodes[name].output[0]]


def test_two_16_bit_types_meet_in_one_cast_each_way(tmp_path: Path) -> None:
    """FP16 among BF16 layers: a value crosses straight from one to the other, once for all."""
    model = load_text(
        """(float[4] x) => (float[4] y, float[4] z) {
            [a] a = Exp(x) t = Identity(a) [b] b = Neg(t) [c] c = Abs(t) [d] y = Add(b, c)
            [e] z = Mul(a, b) }""",
        tmp_path,
    )
    writer = TypedWriter(model, Pair(low="fp16", high="bf16"))
    typed = writer.write(keeping(model, "b", "c"))
    casts = {
        node.name.removeprefix("precision_bisect/cast/")
        for node in typed.proto.graph.node
        if node.op_type == "Cast"
    }
    assert {"x/fp16", "t/bf16", "b/fp16", "c/fp16", "y/fp32", "z/fp32"} == casts
    types = types_of(typed.proto)
    assert TensorProto.FLOAT16 == types["t"] and TensorProto.BFLOAT16 == types["b"]
