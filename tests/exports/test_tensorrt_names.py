"""What TensorRT's parser makes of ONNX nodes, on which exports by layer name rest."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import onnx
import pytest

from exports_models import Parse, export_of, polygraphy_selects
from models import parse, save
from operator_cases import AFTER, BEFORE, EACH_NIGHT, NODE, operator_cases
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.trtexec_names import layer_precisions
from precision_bisect.exports.trtexec_names import parse_layer_precisions as parse_precisions
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.graph import inner_nodes
from precision_bisect.layer_table import LayerName
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    LAYER_PRECISIONS,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    RunFolder,
)
from weak_networks import handles_floats, networks, parsed

IMAGE = "(float[N,4,8,8] x) => (float y)"
ONE_LAYER = {
    "Relu": f"{IMAGE} {{ y = Relu(x) }}",
    "Softmax": f"{IMAGE} {{ y = Softmax(x) }}",
    "ReduceMean": f"{IMAGE} {{ y = ReduceMean(x) }}",
    "Pow": f"{IMAGE} {{ y = Pow(x, x) }}",
    "MatMul": f"{IMAGE} {{ y = MatMul(x, x) }}",
    "Where": "(float[4] x, bool[4] c) => (float y) { y = Where(c, x, x) }",
    "Conv": "(float[N,4,8,8] x, float[2,4,3,3] k) => (float y) { y = Conv(x, k) }",
    "Resize": f"{IMAGE} <float[4] s = {{1, 1, 2, 2}}> {{ y = Resize(x, , s) }}",
    "MaxPool": f"{IMAGE} {{ y = MaxPool <kernel_shape = [2, 2]> (x) }}",
    "LayerNormalization": "(float[N,2] x) => (float y) <float[2] s = {1, 1}>"
    " { y = LayerNormalization(x, s) }",
}
SEVERAL_LAYERS = {
    "Gemm": ("(float[N,8] x, float[8,4] w, float[4] b) => (float y) { y = Gemm(x, w, b) }", 2),
    "LogSoftmax": (f"{IMAGE} {{ y = LogSoftmax(x) }}", 2),
    "ReduceL2": (f"{IMAGE} {{ y = ReduceL2(x) }}", 3),
    "LpPool": (f"{IMAGE} {{ y = LpPool <kernel_shape = [2, 2]> (x) }}", 4),
}
NAMED_ELSEWHERE = {
    "Hardmax": f"{IMAGE} {{ y = Hardmax(x) }}",
    "Shrink": f"{IMAGE} {{ y = Shrink(x) }}",
    "Trilu": f"{IMAGE} {{ y = Trilu(x) }}",
}
NAMELESS_INSIDE = {
    "GlobalLpPool": f"{IMAGE} {{ y = GlobalLpPool(x) }}",
    "Mod": f"{IMAGE} {{ y = Mod <fmod = 1> (x, x) }}",
    "LSTM": "(float[S,N,8] x, float[1,16,8] w, float[1,16,4] r) => (float y)"
    " { y = LSTM <hidden_size = 4> (x, w, r) }",
    "GRU": "(float[S,N,8] x, float[1,12,8] w, float[1,12,4] r) => (float y)"
    " { y = GRU <hidden_size = 4> (x, w, r) }",
}


REFUSED = {
    *NAMED_ELSEWHERE,
    *NAMELESS_INSIDE,
    "RNN",
    "Upsample",
    "EyeLike",
    "Attention",
    "TensorScatter",
}
MOVING = {
    *("CAST", "CONCATENATION", "CONSTANT", "FILL", "IDENTITY", "SHUFFLE", "SLICE", "SQUEEZE"),
    "UNSQUEEZE",
}
"""Layers that only move or make values; those that are added to a node have other names."""
MASKS = {"Dropout"}
"""Operators of which a further layer computes no value, but a mask that is always true."""


def candidates(export: Export) -> list[LayerName]:
    """Return the layers that a search would decide on."""
    return list(export.model.table.names)


def layers(network: Any) -> list[Any]:
    """Return the network's layers."""
    return [network.get_layer(i) for i in range(network.num_layers)]


def output_types(layer: Any) -> list[str]:
    """Return the types of the layer's outputs."""
    return [layer.get_output(i).dtype.name for i in range(layer.num_outputs)]


def named(body: str) -> Any:
    """Return the model of one node, called `node`."""
    model = parse(body)
    model.graph.node[0].name = "node"
    return model


@pytest.mark.parametrize("operator", ONE_LAYER)
def test_most_nodes_are_one_float_layer_of_their_name(operator: str, parse_rtx: Parse) -> None:
    """What trtexec addresses by the node's name is the layer that computes it."""
    network = parse_rtx(named(ONE_LAYER[operator]))
    computing = [layer for layer in layers(network) if layer.metadata == "[ONNX Layer: node]"]
    assert ["node"] == [layer.name for layer in computing]
    assert ["FLOAT"] == output_types(computing[0])


@pytest.mark.parametrize("operator", SEVERAL_LAYERS)
def test_the_script_finds_all_layers_of_a_node(
    operator: str, parse_rtx: Parse, tmp_path: Path
) -> None:
    """Of several layers only the first has the node's name, but the metadata of all have it."""
    body, count = SEVERAL_LAYERS[operator]
    model = named(body)
    write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["node"]))
    network = parse_rtx(model)
    assert {"node"} == polygraphy_selects(tmp_path / POLYGRAPHY_SCRIPT, network)
    computing = [layer for layer in layers(network) if layer.metadata == "[ONNX Layer: node]"]
    assert count == len(computing)
    assert 1 == sum(layer.name == "node" for layer in computing)


@pytest.mark.parametrize("operator", EACH_NIGHT)
def test_names_lead_to_all_that_computes_floats(
    rtx: Flavour, operator: str, tmp_path: Path
) -> None:
    """A node of which several layers compute is refused, and so is a layer of integers."""
    for model, _ in islice(networks(rtx, operator), 8):
        if model.opset_import[0].version < 9:
            continue
        name_bodies(model.graph)
        held = parsed(rtx.module, model)
        floats = {layer.name: layer for layer in held.layers if handles_floats(layer)}
        computing = {name for name, layer in floats.items() if layer.type.name not in MOVING}
        export = export_of(save(model, tmp_path), [])
        try:
            told = parse_precisions(layer_precisions(replace(export, kept=candidates(export))))
        except NotWritable as reason:
            several = [name for name in computing if not name.startswith((BEFORE, AFTER, NODE))]
            several += [name for name in computing if name.startswith(f"{NODE}_")]
            assert operator in REFUSED or several, reason
            continue
        assert {layer.name for layer in held.layers if layer.name in told} <= floats.keys()
        # What has no input is computed from constants alone.
        if operator not in MASKS and model.graph.input:
            assert computing <= told.keys()


def name_bodies(graph: onnx.GraphProto) -> None:
    """Give the nodes of bodies unique names, as the nodes of the main graph have."""
    inside = [node for node in graph.node for node in inner_nodes(node)]
    for number, node in enumerate(inside):
        node.name = f"inside{number}"


@pytest.mark.parametrize("operator", NAMED_ELSEWHERE)
def test_a_name_on_a_layer_of_integers_is_not_written(
    operator: str, parse_rtx: Parse, tmp_path: Path
) -> None:
    """trtexec would give FP32 to a layer of booleans or integers; the script finds the floats."""
    model = named(NAMED_ELSEWHERE[operator])
    (first,) = [layer for layer in layers(parse_rtx(model)) if layer.name == "node"]
    assert {"BOOL", "INT32"}.intersection(output_types(first))
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["node"]))
    assert "computes no floats" in str(reasons[LAYER_PRECISIONS])
    assert {"node"} == polygraphy_selects(tmp_path / POLYGRAPHY_SCRIPT, parse_rtx(model))


def test_a_name_on_no_layer_is_not_written(parse_rtx: Parse, tmp_path: Path) -> None:
    """Upsample becomes a layer of another name than its own."""
    model = parse("(float[1,1,2,2] x) => (float y) { y = Upsample(x, s) }", opset=9)
    model.graph.node[0].name = "node"
    model.graph.initializer.add(name="s", data_type=1, dims=[4], float_data=[1, 1, 2, 2])
    assert "node" not in [layer.name for layer in layers(parse_rtx(model))]
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["node"]))
    assert "computes no floats" in str(reasons[LAYER_PRECISIONS])
    assert {"node"} == polygraphy_selects(tmp_path / POLYGRAPHY_SCRIPT, parse_rtx(model))


@pytest.mark.parametrize("operator", NAMELESS_INSIDE)
def test_layers_without_a_name_cannot_be_told_of(
    operator: str, parse_rtx: Parse, tmp_path: Path
) -> None:
    """Where part of a node is out of reach for trtexec, the script still marks all of it."""
    model = named(NAMELESS_INSIDE[operator])
    nameless = [
        layer.type.name
        for layer in layers(parse_rtx(model))
        if not layer.metadata and "FLOAT" in output_types(layer)
    ]
    assert {"ELEMENTWISE", "MATRIX_MULTIPLY", "LOOP_OUTPUT"}.intersection(nameless)
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["node"]))
    said = f"TensorRT builds 'node' ({operator}) of layers without a name"
    assert said in str(reasons[LAYER_PRECISIONS])
    assert {"node"} == polygraphy_selects(tmp_path / POLYGRAPHY_SCRIPT, parse_rtx(model))
    assert reasons[AUTOCAST] is None


def test_an_attention_has_no_precision_to_set(tmp_path: Path) -> None:
    """TensorRT's layers for it are borders of one fused operation: only types in the graph keep it
    high."""
    model = operator_cases()["Attention"][0]
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["node"]))
    assert reasons[LAYER_PRECISIONS] == reasons[POLYGRAPHY_SCRIPT]
    assert "no precision to set for 'node' (Attention)" in str(reasons[POLYGRAPHY_SCRIPT])
    assert reasons[MIXED_MODEL] is None
