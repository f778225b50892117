"""A switched graph whose edges are fixed as a plan has them; results are the same, bit for bit.

A switch costs about ten microseconds a run, and two graphs more to open. Layers in two versions
keep theirs: ONNX Runtime has other kernels for a node whose weights are beside it. No optimisation
looks through a switch. So where an edge rounds nothing there is a Reshape to the same shape, which
copies nothing and stops fusions as well. In a session that leaves its graph as it stands nothing
fuses, and no kernel is another: there all that the plan decides is taken out.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.declared import Declared
from precision_bisect.backends.emulation.snippets import Flags, split_flags
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph
from precision_bisect.graphs.graph import (
    all_graphs,
    attribute,
    captured,
    copied,
    opset,
    refill,
    rename_tensors,
    subgraphs,
)
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.weights import Weights, drop_unused
from precision_bisect.machine.stopping import look_at_clock

_ROUNDING = frozenset(("Cast", "QuantizeLinear", "DequantizeLinear"))
_SAME_SHAPE = "precision_bisect/same_shape"


def is_bare(model: Model) -> bool:
    """Tell whether the emulator's sessions of a model leave their graphs as they stand.

    The optimizer takes as long again to open one. It finds little between switches, of which there
    is about one for each node, but other layouts for images. Where it finds nothing a plan's own
    graph needs no switches, and runs in half of the time.
    """
    kinds = (node.op_type for graph in all_graphs(model.proto.graph) for node in graph.node)
    return not any("Conv" in kind or "Pool" in kind for kind in kinds)


def with_fixed_edges(
    proto: onnx.ModelProto, declared: Declared, on: Mapping[str, bool]
) -> onnx.ModelProto:
    """Return a switched graph with the edges that these flags decide as they are set.

    One that rounds nothing keeps its switch where the rank is unknown.
    """
    shapes: dict[int, onnx.TensorProto] = {}
    nodes = [part for node in proto.graph.node for part in _fixed(node, declared, on, shapes)]
    fixed = onnx.ModelProto(ir_version=proto.ir_version)
    fixed.opset_import.extend(proto.opset_import)
    fixed.graph.name = proto.graph.name
    fixed.graph.node.extend(nodes)
    fixed.graph.input.extend(proto.graph.input)
    fixed.graph.output.extend(proto.graph.output)
    fixed.graph.initializer.extend([*proto.graph.initializer, *shapes.values()])
    return fixed


def without_switches(
    source: onnx.ModelProto, weights: Mapping[str, NDArray[Any]], on: Mapping[str, bool]
) -> tuple[onnx.ModelProto, Weights]:
    """Return a switched graph with only what these flags choose, and the weights that it reads.

    For sessions that are not optimised.
    """
    proto = onnx.ModelProto(ir_version=source.ir_version)
    proto.opset_import.extend(source.opset_import)
    graph, ends = proto.graph, {value.name for value in source.graph.output}
    graph.name = source.graph.name
    graph.input.extend(source.graph.input)
    graph.output.extend(source.graph.output)
    graph.initializer.extend(source.graph.initializer)
    _add_chosen(graph, source.graph.node, on, {}, ends)
    if not any(name in on for node in graph.node for name in (*node.input, *captured(node))):
        refill(graph.node, [node for node in graph.node if FLAGS_INPUT not in node.input])
    left: Weights = dict(weights)
    drop_unused(graph, left)
    return proto, left


def _add_chosen(
    graph: onnx.GraphProto,
    nodes: Iterable[onnx.NodeProto],
    on: Mapping[str, bool],
    names: dict[str, str],
    ends: Collection[str],
    *,
    chosen: bool = False,
) -> None:
    """Add to a graph what flags choose of these nodes; `names` has what tensors are called there.

    It is no function inside another: that would hold the graph until Python looks for circles.
    """
    for node in nodes:
        look_at_clock()
        flag = on.get(node.input[0]) if node.input else None
        if node.op_type == "If" and flag is not None:
            taken = attribute(node, "then_branch" if flag else "else_branch")
            assert taken is not None
            inner = (value.name for value in taken.g.output)
            names.update(
                (one, names.get(end, end)) for one, end in zip(inner, node.output, strict=True)
            )
            graph.initializer.extend(taken.g.initializer)
            _add_chosen(graph, taken.g.node, on, names, ends, chosen=True)
            continue
        passed = ""
        if node.op_type == "Where" and flag is not None:
            passed = node.input[1 if flag else 2]
        elif node.op_type == "Identity" and chosen:
            passed = node.input[0]
        end = names.get(node.output[0], node.output[0])
        if passed and end not in ends:
            # Both names: readers inside the branch know it by another one than those outside.
            names[node.output[0]] = names[end] = names.get(passed, passed)
            continue
        own = onnx.GraphProto(node=[node])
        if any(subgraphs(node)):
            rename_tensors(own, names)
        else:
            for side in (own.node[0].input, own.node[0].output):
                for i, name in enumerate(side):
                    if name in names:
                        side[i] = names[name]
        graph.node.extend(own.node)


def for_plan(
    graph: SwitchedGraph, model: Model, low: NDArray[np.bool_], *, bare: bool = False
) -> SwitchedGraph:
    """Return the graph for one plan; `low` is as in `Switches.flags`, `bare` as in `is_bare`."""
    flags = graph.switches.flags(low)
    on = {Flags.name(number): bool(flag) for number, flag in enumerate(flags)}
    weights = graph.weights
    if bare:
        proto, weights = without_switches(graph.proto, weights, on)
    else:
        proto = with_fixed_edges(graph.proto, Declared(graph, model), on)
    # A flag that nothing reads any more takes time to be split off.
    nodes = [node for node in proto.graph.node if FLAGS_INPUT not in node.input]
    read = {name for node in nodes for name in (*node.input, *captured(node))}
    left = [number for number in range(len(flags)) if Flags.name(number) in read]
    names = [Flags.name(number) for number in left]
    split = [split_flags(FLAGS_INPUT, names, opset(proto))] if left else []
    refill(proto.graph.node, [*split, *nodes])
    for value in proto.graph.input:
        if value.name == FLAGS_INPUT:
            value.type.tensor_type.shape.dim[0].dim_value = len(left)
    switches = replace(graph.switches, layers=graph.switches.layers[left])
    return replace(graph, proto=proto, weights=weights, switches=switches)


def _fixed(
    node: onnx.NodeProto,
    declared: Declared,
    on: Mapping[str, bool],
    shapes: dict[int, onnx.TensorProto],
) -> list[onnx.NodeProto]:
    """Return what takes the place of a node; `shapes` gains the constant of a Reshape, by rank."""
    look_at_clock()
    if node.op_type != "If" or node.input[0] not in on:
        return [node]
    taken = attribute(node, "then_branch" if on[node.input[0]] else "else_branch")
    assert taken is not None
    inside = [copied(inner) for inner in taken.g.node]
    inside[-1].output[0] = node.output[0]
    if {inner.op_type for inner in inside} <= _ROUNDING:
        return inside
    # A branch of several steps may begin with a constant, which reads nothing.
    if [inner.op_type for inner in inside] != ["Identity"]:
        return [node]
    source = inside[0].input[0]
    rank = declared.rank(source)
    if rank is None:
        return [node]
    # A zero takes the dimension as it is.
    same = onnx.numpy_helper.from_array(np.zeros(rank, np.int64), f"{_SAME_SHAPE}/{rank}")
    shapes[rank] = same
    return [helper.make_node("Reshape", [source, same.name], node.output)]
