"""What runs high: the nodes that a plan leaves above the low type, layers or not.

The layers that a plan keeps are a part of it. Nodes that move values between them, or only look at
what they return (ArgMax, Greater, DequantizeLinear), read and write the same tensors. A tool that
is told of the layers alone would round there.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import onnx

from precision_bisect.graphs.classify import CASTS, QUANTIZATION
from precision_bisect.graphs.graph import all_graphs, captured, inner_nodes, subgraphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.layout import Layout, Placement
from precision_bisect.layer_table import ASSIGNED, Exclusion, Layer, LayerName, LayerTable
from precision_bisect.precisions import HighName, Pair

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


ToldNode: TypeAlias = tuple[HighName, tuple[str, ...], tuple[str, ...]]
ToldNodes: TypeAlias = Mapping[str, ToldNode]
"""By the name of a node its type, and the tensors that it reads and writes."""


class HighNode(NamedTuple):
    """A node above the low type: the float type, and the tensors that it reads and writes.

    Constants are not among them. `inside` are the nodes of its subgraphs at any depth that handle
    floats: they stay high with it.
    """

    precision: HighName
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    inside: ToldNodes


def told(nodes: Mapping[LayerName, HighNode], table: LayerTable) -> ToldNodes:
    """Return what TensorRT is told of, by whatever means: these nodes and those inside them.

    Nodes whose type is their meaning, or a plug-in's own business, are not among them.
    """
    told_nodes: dict[str, ToldNode] = {}
    for name, node in nodes.items():
        told_nodes |= {name: node[:3], **node.inside}
    own = {layer.name for layer in table.with_bodies if _typed_already(layer)}
    return {name: node for name, node in told_nodes.items() if name not in own}


def _typed_already(layer: Layer) -> bool:
    # By the operator: what quantizes or casts a constant is excluded as a constant.
    return layer.domain not in ("", "ai.onnx") or layer.op_type in CASTS | QUANTIZATION


def high_nodes(
    model: Model, pair: Pair, layout: Layout, placement: Placement
) -> dict[LayerName, HighNode]:
    """Return the nodes of the main graph that a placement leaves above the low type, in order.

    Where low layers are of 8 bits, the float type around them is no higher than they are: then
    other nodes count only in a higher one. What is computed from constants counts if something
    reads it in FP32; a node called Constant computes nothing, and tools leave its values alone.
    """
    base = pair.low_form.stored
    exclusions = {layer.name: layer.exclusion for layer in model.table.layers}
    constants = _constants(model.proto.graph)
    nodes_by_name = {}
    for node in _in_fp32_or_low(model, layout, placement):
        name = LayerName(node.name)
        low, exclusion = placement.nodes.get(name), exclusions[name]
        if low is not None:
            kind: HighName = low.kind.name
        elif exclusion is Exclusion.UNTYPED or _touches_floats(node, model):
            kind = "fp32"
        else:
            continue
        decided = exclusion in ASSIGNED
        if kind != base or (decided and pair.low_form.quantized is not None):
            nodes_by_name[name] = _described(node, kind, constants, model)
    return nodes_by_name


def _in_fp32_or_low(model: Model, layout: Layout, placement: Placement) -> list[onnx.NodeProto]:
    """Return the nodes but 8-bit ones, Constants, and those of which low copies are read alone."""
    exclusions = {layer.name: layer.exclusion for layer in model.table.layers}
    nodes, read = [], set(layout.public)
    # Backwards: what reads a constant is known before it.
    for node in reversed(model.proto.graph.node):
        name = LayerName(node.name)
        unread = exclusions.get(name) is Exclusion.CONSTANT and read.isdisjoint(node.output)
        if name not in exclusions or unread:
            continue
        low = placement.nodes.get(name)
        copied = () if low is None else low.form.inputs
        read.update(
            tensor
            for i, tensor in enumerate(node.input)
            if i not in copied or layout.constants.array(tensor) is None
        )
        if name not in placement.quantized and node.op_type != "Constant":
            nodes.append(node)
    return nodes[::-1]


def _may_touch_floats(node: onnx.NodeProto, model: Model) -> bool:
    """Tell the same of a node in a body; types that could not be inferred may be floats."""
    unknown = any(not model.elem_types.get(name) for name in node.output if name)
    return unknown or _touches_floats(node, model)


def _touches_floats(node: onnx.NodeProto, model: Model) -> bool:
    """Tell whether a node that is not low reads the values of floats, or writes floats."""
    if Layout.reads_any_type(node):
        return False
    written = (name for inner in (node, *inner_nodes(node)) for name in inner.output)
    names = {*node.input, *captured(node), *written}
    return any(model.elem_types.get(name) in FLOATS for name in names)


def _described(
    node: onnx.NodeProto, kind: HighName, constants: set[str], model: Model
) -> HighNode:
    inside = {
        inner.name: (kind, *_read_and_written(inner, constants))
        for inner in inner_nodes(node)
        if inner.op_type != "Constant" and _may_touch_floats(inner, model)
    }
    return HighNode(kind, *_read_and_written(node, constants), inside)


def _read_and_written(
    node: onnx.NodeProto, constants: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    # What a loop hands to its body comes from the loop.
    handed = [value.name for graph in subgraphs(node) for value in graph.input]
    return (
        tuple(name for name in node.input if name and name not in constants),
        tuple(name for name in (*node.output, *handed) if name),
    )


def _constants(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors of constants: weights, and what nodes called Constant return."""
    graphs = list(all_graphs(graph))
    names = {tensor.name for inner in graphs for tensor in inner.initializer}
    constants = (node for inner in graphs for node in inner.node if node.op_type == "Constant")
    return names.union(*(node.output for node in constants))
