"""A switched graph whose edges are fixed as a plan has them; results are the same, bit for bit.

A switch costs about ten microseconds a run, and two graphs more to open. Layers in two versions
keep theirs: ONNX Runtime has other kernels for a node whose weights are beside it. No optimisation
looks through a switch. So where an edge rounds nothing there is a Reshape to the same shape, which
copies nothing and stops fusions as well.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.declared import Declared
from precision_bisect.backends.emulation.snippets import Flags, split_flags
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph
from precision_bisect.graphs.graph import attribute, captured, copied, opset, refill
from precision_bisect.graphs.load import Model
from precision_bisect.machine.stopping import look_at_clock

_ROUNDING = frozenset(("Cast", "QuantizeLinear", "DequantizeLinear"))
_SAME_SHAPE = "precision_bisect/same_shape"


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


def for_plan(graph: SwitchedGraph, model: Model, low: NDArray[np.bool_]) -> SwitchedGraph:
    """Return the graph for one plan; `low` is as in `Switches.flags`."""
    flags = graph.switches.flags(low)
    on = {Flags.name(number): bool(flag) for number, flag in enumerate(flags)}
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
    return replace(
        graph, proto=proto, switches=replace(graph.switches, layers=graph.switches.layers[left])
    )


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
