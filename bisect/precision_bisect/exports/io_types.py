"""Inputs and outputs of the exported model in FP16, for pipelines that hand over such tensors."""

from collections.abc import Iterable, Mapping

import onnx

from precision_bisect.graphs.graph import all_graphs, attribute, refill
from precision_bisect.graphs.types import infer_elem_types

FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
IO_PREFIX = "precision_bisect/io"


def take_half(proto: onnx.ModelProto) -> None:
    """Declare the FP32 inputs and outputs of a typed model FP16, and cast at the border.

    What reads an input in FP16, or gives an output from FP16, needs no cast.
    """
    graph, types = proto.graph, infer_elem_types(proto, {})
    weights = {tensor.name for tensor in graph.initializer}
    takes = {v.name: v for v in graph.input if _is_float(v) and v.name not in weights}
    gives = {v.name: v for v in graph.output if _is_float(v) and v.name not in takes}
    for value in (*takes.values(), *gives.values()):
        value.type.tensor_type.elem_type = FLOAT16
    names = {name: f"{IO_PREFIX}/{name}" for name in (*takes, *gives)}
    outputs = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        if _casts(node, FLOAT16) and node.input[0] in takes and node.output[0] not in outputs:
            names[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    refill(graph.node, nodes)
    _rename(graph, names)
    ends = [_given(name, names[name], graph.node, types) for name in gives]
    begins = [_cast(name, names[name], FLOAT) for name in takes]
    read = {name for each in all_graphs(graph) for node in each.node for name in node.input}
    read |= {name for node in ends for name in node.input} | outputs
    every = (*begins, *graph.node, *ends)
    useful = [n for n in every if not _casts(n, FLOAT) or n.output[0] in read]
    refill(graph.node, useful)


def _given(
    name: str, inner: str, nodes: Iterable[onnx.NodeProto], types: Mapping[str, int]
) -> onnx.NodeProto:
    """Return the node that gives an output in FP16, which is `inner` in FP32."""
    maker = next((node for node in nodes if inner in node.output), None)
    if maker is not None and _casts(maker, FLOAT) and types.get(maker.input[0]) == FLOAT16:
        source = maker.input[0]
        return onnx.helper.make_node("Identity", [source], [name], name=f"{inner}/identity")
    return _cast(inner, name, FLOAT16)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Call tensors otherwise wherever nodes make or read them, inside subgraphs, too."""
    for each in all_graphs(graph):
        for node in each.node:
            for side in (node.input, node.output):
                for i, name in enumerate(side):
                    side[i] = names.get(name, name)
        if each is not graph:
            for value in each.output:
                value.name = names.get(value.name, value.name)
    stale = [value for value in graph.value_info if value.name in names]
    for value in stale:
        graph.value_info.remove(value)


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    inner = target if kind == FLOAT else source
    return onnx.helper.make_node("Cast", [source], [target], name=f"{inner}/cast", to=kind)


def _casts(node: onnx.NodeProto, kind: int) -> bool:
    to = attribute(node, "to") if node.op_type == "Cast" else None
    return to is not None and to.i == kind


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == FLOAT)
