"""Verdicts on what TensorRT 10 really prints, and on where TensorRT-RTX prints otherwise."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from effort import nightly
from inspection import real_texts as real
from inspection.engines import DEMOTED, HONOURED, UNSEEN, Target, inspect
from inspection.judged import FP16, chain, verdicts, words
from inspection.test_honoured_rtx import ALONE, ATTENTION, PRODUCTS, Case
from inspection.test_kernel_source import random_model
from models import keeping, save
from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    parse_json,
    parse_layers,
)
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import Pair


def test_a_convolution_of_alexnet(tmp_path: Path) -> None:
    """Weights that stand among the parameters decide; a Relu behind may be anything."""
    names = "/features/features.0/Conv", "/features/features.1/Relu"
    model = chain(
        tmp_path,
        dict(zip(names, ("Conv", "Relu"), strict=True)),
        {names[0]: [(64, 3, 11, 11), (64,)]},
    )
    (layer,) = parse_layers(real.message(real.CONVOLUTION))
    assert [("Weights", "fp16", 23232), ("Bias", "fp16", 64)] == [
        (held.name, held.dtype, held.elements) for held in layer.constants
    ]
    assert dict(zip(names, (DEMOTED, UNSEEN), strict=True)) == verdicts(model, [layer])


def test_a_product_of_alexnet(tmp_path: Path) -> None:
    """Weights and bias are listed as inputs; alpha and beta in FP32 change nothing."""
    name = "/classifier/classifier.6/Gemm"
    model = chain(tmp_path, {name: "Gemm"}, {name: [(4096, 1000), (1000,)]})
    (layer,) = parse_layers(real.message(real.GEMM))
    assert ["output'.1_4"] == [tensor.name for tensor in layer.inputs]
    assert ["fp16", "fp16"] == [held.dtype for held in layer.constants if not held.scales]
    assert {name: DEMOTED} == verdicts(model, [layer])
    high = real.GEMM.replace("Half", "Float").replace("f16f16_f32_f32", "f32f32_tf32f32_f32")
    assert {name: HONOURED} == verdicts(model, parse_layers(real.message(high)))


def test_high_weights_beside_a_low_tactic(tmp_path: Path) -> None:
    """What a tactic reads outranks weights that are listed higher."""
    name = "/features/features.0/Conv"
    model = chain(tmp_path, {name: "Conv"}, {name: [(64, 3, 11, 11), (64,)]})
    weights = real.CONVOLUTION.replace('"Half", "Count": 23232', '"Float", "Count": 23232')
    assert {name: DEMOTED} == verdicts(model, parse_layers(real.message(weights)))
    high = weights.replace("f16f16_f16f16_f16", "f32f32_tf32f32_f32")
    assert {name: HONOURED} == verdicts(model, parse_layers(real.message(high)))


def test_weights_that_are_converted_for_a_low_product(tmp_path: Path) -> None:
    """A kernel that only scales and converts the weights does not show what reads them."""
    name = "/encoder/layers.0/pos_ff/output/MatMul"
    model = chain(tmp_path, {name: "MatMul"}, {name: [(10, 10)]})
    low = real.GEMM_WITHOUT_WEIGHTS.replace("f16f16_f16f16_f16", "of_another_form")
    for operations, expected in (("MulCas", UNSEEN), ("MulSumAddCas", HONOURED)):
        line = real.HIGH_LINEAR.replace("MulSumAddCas", operations)
        layers = parse_layers(real.message(f"{line}[ONNX Layer: {name}]", low))
        assert {name: expected} == verdicts(model, layers, typed=True)


def test_a_bias_is_no_weight_of_a_product(tmp_path: Path) -> None:
    """An FP32 bias in a low product whose metadata leaves out the Add honours nothing."""
    name = "/classifier/classifier.6/Gemm"
    model = chain(
        tmp_path, {name: "MatMul", "add": "Add"}, {name: [(4096, 1000)], "add": [(1000,)]}
    )
    weights = "{ Name: __mye595_dconst, Dimensions: [4096,1000], Format/Datatype: Half }, "
    text = real.GEMM.replace(weights, "").replace("f16f16_f32_f32", "of_another_form")
    text = text.replace(
        "constantHalf, Dimensions: [1,1000], Format/Datatype: Half",
        "constantFloat, Dimensions: [1,1000], Format/Datatype: Float",
    )
    (layer,) = parse_layers(real.message(text))
    assert ["fp32"] == [held.dtype for held in layer.constants if not held.scales]
    assert {name: DEMOTED, "add": UNSEEN} == verdicts(model, [layer])


def test_filter_weights_are_constants() -> None:
    """TensorRT 10 names those of a convolution by its layer."""
    text = real.GEMM.replace("__mye595_dconst", "DiT/proj/CONVOLUTION_0 filterWeightsHalf")
    (layer,) = parse_layers(real.message(text))
    assert ["output'.1_4"] == [tensor.name for tensor in layer.inputs]


@pytest.mark.parametrize(
    ("weights", "tactic", "expected"),
    [
        ([(256, 256)], "f16f16_f16f16_f16", DEMOTED),
        ([(256, 256)], "f16f16_f16f32_f32", DEMOTED),
        ([(256, 256)], "f16f16_f32_f32", DEMOTED),
        ([(256, 256)], "i8f16_i8i32_f32", DEMOTED),
        ([(256, 256)], "f32f32_tf32f32_f32", HONOURED),
        ([(256, 256)], "f32f32_f32f32_f32", HONOURED),
        ([(256, 256)], "of_another_form", DEMOTED),
    ],
)
def test_a_product_without_weights(
    tmp_path: Path, weights: list[tuple[int, ...]], tactic: str, expected: str
) -> None:
    """The tactic's name tells in which type a product computes; the sum behind it is not seen."""
    names = [f"/encoder/layers.0/pos_ff/output/{op_type}" for op_type in ("MatMul", "Add")]
    model = chain(
        tmp_path,
        dict(zip(names, ("MatMul", "Add"), strict=True)),
        {names[0]: weights, names[1]: [(256,)]},
    )
    text = real.GEMM_WITHOUT_WEIGHTS.replace("f16f16_f16f16_f16", tactic)
    found = verdicts(model, parse_layers(real.message(text)))
    assert dict(zip(names, (expected, UNSEEN), strict=True)) == found


@pytest.mark.parametrize(
    ("tactic", "expected"), [("f16f16_f16f16_f16", DEMOTED), ("f16f16_f32_f32", UNSEEN)]
)
def test_a_product_of_two_results(tmp_path: Path, tactic: str, expected: str) -> None:
    """What is read low may be multiplied in FP32: then nothing was lost, and nothing is said."""
    name = "/encoder/layers.0/pos_ff/output/MatMul"
    node = helper.make_node("MatMul", ["x", "x"], ["y"], name)
    ends = [helper.make_tensor_value_info(t, TensorProto.FLOAT, [8, 8]) for t in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    text = real.GEMM_WITHOUT_WEIGHTS.replace("f16f16_f16f16_f16", tactic)
    model = load_model(save(proto, tmp_path))
    assert {name: expected} == verdicts(model, parse_layers(real.message(text)))


def test_fused_attention_is_not_observable(tmp_path: Path) -> None:
    """Attention in one kernel shows nothing of its products and its softmax."""
    nodes = {"q": "MatMul", "scores": "Softmax", "context": "MatMul"}
    model = chain(tmp_path, nodes, {"q": [(64, 40)], "context": [(40, 64)]})
    found = verdicts(model, parse_layers(real.message(real.ATTENTION)))
    assert dict.fromkeys(nodes, UNSEEN) == found


def test_a_product_in_a_generated_kernel(tmp_path: Path) -> None:
    """A small product is `MulSum` in a kernel whose weights are listed as inputs."""
    high = chain(tmp_path, {"k": "MatMul"}, {"k": [(10, 10)]})
    line = f"{real.HIGH_LINEAR}[ONNX Layer: k]"
    assert {"k": HONOURED} == verdicts(high, parse_layers(real.message(line)), typed=True)
    low = chain(tmp_path, {"k": "MatMul"}, {"k": [(10, 30)]})
    line = f"{real.LOW_LINEAR}[ONNX Layer: k]"
    assert {"k": DEMOTED} == verdicts(low, parse_layers(real.message(line)), typed=True)


@pytest.mark.parametrize("phrase", real.FORMATS)
def test_whole_phrases_are_read(phrase: str) -> None:
    """Type and layout are one phrase, with spaces, up to the brace behind it."""
    line = real.GEMM_WITHOUT_WEIGHTS.replace("Format/Datatype: Half", f"Format/Datatype: {phrase}")
    (layer,) = parse_layers(real.message(line))
    assert [real.FORMATS[phrase]] * 2 == [
        tensor.dtype for tensor in (*layer.inputs, *layer.outputs)
    ]


def test_the_names_of_bindings_are_no_layer() -> None:
    """What follows the layers is cut off, also where a name of it holds a bracket."""
    layers = parse_layers(real.message(real.CONVOLUTION, real.GEMM))
    assert ["/features/features.1/Relu", "/classifier/classifier.6/Gemm"] == [
        layer.nodes[-1] for layer in layers
    ]
    assert [] == parse_layers(real.NAMES_ONLY)


QUANTIZED = """{"Layers": [{
  "Name": "conv1.weight + QuantizeLinear_7 + Conv_9 + MaxPool_12", "LayerType": "ConvActPool",
  "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [32,3,224,224],
    "Format/Datatype": "Row major Int8 format"}],
  "Outputs": [{"Name": "y", "Location": "Device", "Dimensions": [32,64,56,56],
    "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}],
  "ParameterType": "ConvActPool", "ConvKernel": [7,7],
  "ConvWeights": {"Type": "Int8", "Count": 9408}, "ConvBias": {"Type": "Float", "Count": 64},
  "TacticValue": "0x0000000000000461" METADATA}]}"""


def test_a_convolution_fused_with_a_pooling(tmp_path: Path) -> None:
    """`ConvWeights` decide, whatever type the bias has and however many they are."""
    nodes = {"Conv_9": "Conv"}
    model = chain(tmp_path, nodes, {"Conv_9": [(64, 3, 7, 7), (64,)]})
    metadata = ', "Metadata": "[ONNX Layer: Conv_9]\x1e[ONNX Layer: MaxPool_12]"'
    for count in (9408, 9472):
        text = QUANTIZED.replace("METADATA", metadata).replace("9408", str(count))
        assert {"Conv_9": DEMOTED} == verdicts(model, parse_json(text))


def test_types_without_nodes(tmp_path: Path) -> None:
    """An engine of TensorRT before 8.6 gives types and names no nodes: the evidence says so."""
    model = chain(tmp_path, {"Conv_9": "Conv"}, {"Conv_9": [(64, 3, 7, 7)]})
    layers = parse_json(QUANTIZED.replace("METADATA", ""))
    (found,) = judge_layers(model, keeping(model, "Conv_9"), None, layers, FP16)
    assert "the engine gives types, and not which nodes its layers come from." == found.evidence


def as_tensorrt_10(layers: Sequence[EngineLayer]) -> str:
    """Return the text of these layers of TensorRT-RTX as many builds of TensorRT 10 write it."""
    words = {"fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}

    def listed(layer: EngineLayer, *keys: str) -> str:
        return ", ".join(
            f"{{ Name: {tensor.name}, Dimensions: [{','.join(map(str, tensor.dims))}], "
            f"Format/Datatype: {words.get(tensor.dtype, tensor.dtype)} }}"
            for key in keys
            for tensor in getattr(layer, key)
        )

    def short(name: str) -> str:
        cut = name.startswith("__myl_") and name.removesuffix("Etc")
        return re.sub(r"([A-Z][a-z0-9]{2})[a-z0-9]+(?=[A-Z_])", r"\1", name) if cut else name

    return real.message(
        *(
            f"Name: {short(layer.name)}, LayerType: {layer.kind}, "
            f"Inputs: [ {listed(layer, 'inputs', 'constants')}], "
            f"Outputs: [ {listed(layer, 'outputs')}], TacticName: t, StreamId: 0, "
            f"Metadata: {''.join(f'[ONNX Layer: {node}]' for node in layer.nodes)}"
            for layer in layers
        )
    )


def compared(
    rtx: Flavour, model: Model, kept: Sequence[str], folder: Path, target: Target
) -> list[tuple[str, str]]:
    """Return the verdicts on a real engine by its own text, and by that of TensorRT 10."""
    plan, pair = keeping(model, *kept), Pair(low=target.low, high="fp32")
    typed = TypedWriter(model, pair).write(plan, target.guard)
    found = inspect(rtx, model, kept, folder, target)
    again = parse_layers(as_tensorrt_10(found.layers))
    other = words(judge_layers(model, plan, typed, again, pair))
    return [(honour, other[layer]) for layer, honour in found.honours.items()]


@pytest.mark.parametrize("guard", [False, *nightly(True)])
def test_real_engines_in_the_words_of_tensorrt_10(
    rtx: Flavour, tmp_path: Path, guard: bool
) -> None:
    """Names cut at three letters and constants among the inputs change no verdict."""
    pairs = []
    cases: list[Case] = [*PRODUCTS.values(), *ALONE.values(), ATTENTION]
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = case.load(folder)
        kept = [name for name in model.table.names if name.startswith("k")]
        pairs += compared(rtx, model, kept, folder, Target(guard=guard))
    assert {(HONOURED, HONOURED), (DEMOTED, DEMOTED), (UNSEEN, UNSEEN)} >= set(pairs)


@pytest.mark.parametrize("seed", [0, 1, *nightly(*range(2, 8))])
def test_random_engines_in_the_words_of_tensorrt_10(
    rtx: Flavour, tmp_path: Path, seed: int
) -> None:
    """Such a text is said less of at most: nothing is called what it is not."""
    model = random_model(seed, tmp_path)
    rng = np.random.default_rng(seed)
    kept = [name for name in model.table.names if rng.random() < 0.4]
    pairs = compared(rtx, model, kept, tmp_path, Target(guard=bool(seed % 2)))
    assert all(said in (honour, UNSEEN) for honour, said in pairs)
    assert sum(honour == said for honour, said in pairs) >= len(pairs) - 1
