"""For every operator that TensorRT's parser takes, the marks are the plan, layer by layer."""

import runpy
from itertools import islice
from pathlib import Path

import onnx
import pytest

from operator_cases import AFTER, BEFORE, EACH_NIGHT, NODE, STANDARD, operator_cases
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.weak import inputs_of
from precision_bisect.exports.polygraphy_command import write_polygraphy_script
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.high_nodes import ToldNodes, told
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from weak_networks import (
    Noted,
    Parsed,
    handles_floats,
    markable,
    networks,
    parsed,
    told_by_file,
)

UNMARKED = {
    *("Attention", "Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "Shape", "Size"),
    *("EyeLike", "If", "Loop"),
}
"""Operators of which some models have nothing to mark."""
WITHOUT_MODEL = {
    *("And", "Not", "Or", "Xor"),
    *("CausalConvWithState", "LinearAttention", "NonZero", "RoiAlign"),
    "Range",
}
"""Operators without floats, those for which TensorRT-RTX has no plug-in, and one that it parses on
a GPU only."""
IN_GRAPHS = ("If", "Loop", "Scan")


def of_the_node(held: Parsed) -> set[str]:
    """Return the layers that are to be marked: all that are not those before and behind.

    A constant that nothing reads is none.
    """
    read = {tensor.name for layer in held.layers for tensor in inputs_of(layer)}
    return {
        layer.name
        for layer in held.layers
        if not layer.name.startswith((BEFORE, AFTER)) and handles_floats(layer)
        if layer.type.name != "CONSTANT" or layer.get_output(0).name in read
    }


def in_fp32(model: onnx.ModelProto) -> bool:
    """Tell whether the operator reads what is low before it, and is no relic of old opsets."""
    values = (*model.graph.input, *model.graph.output)
    doubles = any(v.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for v in values)
    return not doubles and model.graph.node[0].name == BEFORE and model.opset_import[0].version > 8


def high_of(model: onnx.ModelProto, folder: Path) -> ToldNodes:
    """Return what a build is told of: the node is kept, or stays high anyway, its neighbours not.

    A node that moves values goes with its neighbours; then it is told of alone.
    """
    path = folder / "model.onnx"
    onnx.save(model, path)
    loaded = load_model(path)
    writer = TypedWriter(loaded, Pair(low="fp16", high="fp32"))
    plan = Plan.of(i for i, name in enumerate(loaded.table.names) if name == NODE)
    return told(writer.high_nodes(plan), loaded.table) or told_by_file(model.graph, NODE)


def marks(rtx: Flavour, high: ToldNodes, held: Parsed) -> Noted:
    """Return what a build asks of the layers of a network."""
    with markable(rtx.module) as noted:
        prepare_network(Marks(kept=(), high=high, low="fp16"), list[LayerName](), held.network)
    return noted


def output_types(held: Parsed, names: set[str]) -> dict[str, dict[int, str]]:
    """Return the float outputs of these layers."""
    types = {
        layer.name: [layer.get_output(i).dtype.name for i in range(layer.num_outputs)]
        for layer in held.layers
        if layer.name in names
    }
    found = {
        name: {i: kind for i, kind in enumerate(kinds) if kind == "FLOAT"}
        for name, kinds in types.items()
    }
    return {name: floats for name, floats in found.items() if floats}


def test_every_operator_that_the_parser_takes_is_among_them(rtx: Flavour) -> None:
    """The parser says which it takes; what handles no floats, or needs a plug-in, has no model."""
    held = parsed(rtx.module, operator_cases()["Relu"][0])
    taken = {name for name in STANDARD if held.held[2].supports_operator(name)}
    seen = {name for name in operator_cases() if any(True for _ in networks(rtx, name))}
    assert WITHOUT_MODEL == taken - seen


@pytest.mark.parametrize("operator", EACH_NIGHT)
def test_the_marks_are_the_layers_of_the_node(rtx: Flavour, operator: str) -> None:
    """Every layer of the node is marked, registered by the parser or not, and no neighbour's."""
    seen = 0
    for model, held in networks(rtx, operator) if operator not in IN_GRAPHS else ():
        seen += 1
        expected = of_the_node(held)
        noted = marks(rtx, told_by_file(model.graph, NODE), held)
        assert dict.fromkeys(expected, "FLOAT") == noted.precision
        assert output_types(held, expected) == noted.outputs
        assert expected or operator in UNMARKED
    if not seen:
        pytest.skip("the parser takes none of its models")


@pytest.mark.parametrize("operator", EACH_NIGHT)
def test_the_plan_is_marked_and_exported_alike(
    rtx: Flavour, operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the plan to the marks, by a build and by the exported script; branches included."""
    model, held = next(
        ((model, held) for model, held in networks(rtx, operator) if in_fp32(model)), (None, None)
    )
    if model is None or held is None:
        pytest.skip("the parser takes none of its models that read and write FP32")
    high = high_of(model, tmp_path)
    expected = dict.fromkeys(of_the_node(held), "FLOAT")
    assert expected == marks(rtx, high, held).precision
    script = tmp_path / "script.py"
    script.write_text(write_polygraphy_script({}, high, ["fp16"]))
    with markable(rtx.module) as noted:
        runpy.run_path(str(script))["postprocess"](network=held.network)
    assert expected == noted.precision
    assert f"({len(expected)} in TensorRT)" in capsys.readouterr().out


@pytest.mark.parametrize("operator", EACH_NIGHT)
def test_no_layer_needs_to_be_registered(rtx: Flavour, operator: str) -> None:
    """Parsers register more layers from version to version: tensors tell the same, any or none."""
    for model, held in islice(networks(rtx, operator), 3) if operator not in IN_GRAPHS else ():
        expected = of_the_node(held)
        registered = [layer for layer in held.layers if layer.metadata]
        for forgotten in (registered[2::2], registered[1::2], registered):
            for layer in forgotten:
                layer.metadata = ""
            noted = marks(rtx, told_by_file(model.graph, NODE), held)
            assert expected == set(noted.precision)
