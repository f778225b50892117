"""The FP32 form of a file with 16-bit floats: every such value is an FP32 value, so it is exact.

Casts between FP32 and a 16-bit type are the file's own precision plan. In the FP32 form they
vanish: which layers run low is what a search decides.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple

import onnx

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import all_graphs, refill, rename_tensors
from precision_bisect.graphs.types import ElemTypes, in_fp32, infer_elem_types
from precision_bisect.graphs.weights import Weights

GUARD_PREFIX = "precision_bisect/guard/"
"""How the nodes are called that keep builders from turning an FP32 layer back into a low one."""
_CASTS = frozenset(("Cast", "CastLike"))
_FLOAT = onnx.TensorProto.FLOAT


class StoredLow(NamedTuple):
    """What a file stores in the 16-bit `kind`: a tensor, as the FP32 form calls it."""

    tensor: str
    kind: int


class Fp32Form(NamedTuple):
    """The FP32 form of a graph, and the nodes of the file that store 16-bit floats, by name."""

    proto: onnx.ModelProto
    weights: Weights
    elem_types: ElemTypes
    in_low: Mapping[str, StoredLow]


def fp32_form(proto: onnx.ModelProto, weights: Weights, low: Mapping[str, int]) -> Fp32Form:
    """Return the FP32 form of a graph, of which `low` are the tensors of a 16-bit type.

    Raises ModelError for a node that reads 16-bit floats bit by bit.
    """
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            if node.op_type == "BitCast" and not low.keys().isdisjoint(
                (*node.input, *node.output)
            ):
                raise ModelError(
                    f"node {node.name!r} is a BitCast of 16-bit floats, which have no FP32 form",
                    "give the model before it was converted",
                )
    graphs = list(all_graphs(proto.graph))
    low_by_node = {node.name: _first_low(node, low) for each in graphs for node in each.node}
    inner = {node.name for graph in graphs[1:] for node in graph.node}
    proto, weights = in_fp32(proto, weights)
    types = dict(infer_elem_types(proto, weights))
    idle = {
        node.output[0]
        for graph in all_graphs(proto.graph)
        for node in graph.node
        if _is_idle(node, types, low)
    }
    idle |= _guards(proto.graph)
    renamed: dict[str, str] = {}
    # Inner graphs first: those that hold them are filled with copies.
    for graph in reversed([*all_graphs(proto.graph)]):
        names = _pass_by(graph, idle)
        renamed = {old: names.get(new, new) for old, new in renamed.items()} | names
    # Of a Cast in a body nothing is left that says to which body it belonged.
    inner -= {node.name for graph in all_graphs(proto.graph) for node in graph.node}
    in_low = {
        name: StoredLow(renamed.get(tensor, tensor), low[tensor])
        for name, tensor in low_by_node.items()
        if tensor is not None and name not in inner
    }
    return Fp32Form(proto, weights, {k: v for k, v in types.items() if k not in renamed}, in_low)


def _first_low(node: onnx.NodeProto, low: Mapping[str, int]) -> str | None:
    return next((name for name in node.output if name in low), None)


def _is_idle(node: onnx.NodeProto, types: ElemTypes, low: Mapping[str, int]) -> bool:
    """Tell whether a node casts from or to a 16-bit type of the file, and FP32 to FP32 now."""
    if node.op_type not in _CASTS or node.domain not in ("", "ai.onnx"):
        return False
    ends = (node.input[0], node.output[0])
    return not low.keys().isdisjoint(ends) and all(types.get(name) == _FLOAT for name in ends)


def _guards(graph: onnx.GraphProto) -> Set[str]:
    """Return the guards of an exported model, which change no value: a new plan has its own."""
    return {
        node.output[0]
        for node in graph.node
        if node.name.startswith(GUARD_PREFIX)
        and node.op_type == "Max"
        and len(set(node.input)) == 1
    }


def _pass_by(graph: onnx.GraphProto, idle: Set[str]) -> dict[str, str]:
    """Take idle nodes out of one graph; return what tensors are called now, by their old names.

    An output of the graph keeps its name.
    """
    outputs = {value.name for value in graph.output}
    node_outputs = {name for node in graph.node for name in node.output if name}
    sources = {node.output[0]: node.input[0] for node in graph.node if node.output[0] in idle}
    passed: dict[str, str] = {}
    ends: dict[str, str] = {}
    kept = []
    for node in graph.node:
        out = node.output[0] if node.output else ""
        if out not in sources:
            kept.append(node)
            continue
        source = _origin(out, sources)
        if out not in outputs:
            passed[out] = source
        # The node that makes the source can make the output itself; once, as it has one name.
        elif source in node_outputs and source not in {*outputs, *ends, *sources}:
            ends[source] = out
        else:
            node.CopyFrom(onnx.helper.make_node("Identity", [source], [out], name=node.name))
            kept.append(node)
    refill(graph.node, kept)
    names = {old: ends.get(new, new) for old, new in (*passed.items(), *ends.items())}
    rename_tensors(graph, names)
    return names


def _origin(name: str, sources: Mapping[str, str]) -> str:
    """Return what a chain of idle nodes passes on. A damaged file may have a circle of them."""
    visited = {name}
    while name in sources and (name := sources[name]) not in visited:
        visited.add(name)
    return name
