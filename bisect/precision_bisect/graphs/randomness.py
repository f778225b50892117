"""Nodes that give other values at each run of a session.

ONNX Runtime draws on from run to run: a seed fixes where it begins, no more. In training mode a
BatchNormalization updates its statistics in the session, where nothing else reads them.
"""

from collections.abc import Set

import onnx

from precision_bisect.graphs.graph import (
    RANDOM,
    all_graphs,
    attribute,
    captured,
    constant_of,
    inner_nodes,
)
from precision_bisect.graphs.load import Model

TRAINED = frozenset(("Dropout", "BatchNormalization"))
"""Operators that change from run to run in training mode alone."""


def changing_nodes(model: Model, outputs: Set[str]) -> list[onnx.NodeProto]:
    """Return the nodes on the way to these outputs that change, in network order, inner ones too.

    A Dropout that nobody can tell to be switched off counts.
    """
    graph = model.proto.graph
    needed, reversed_order = set(outputs), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input, captured(node))
            reversed_order += reversed([node, *inner_nodes(node)])
    zeros = _zeros(graph)
    return [node for node in reversed(reversed_order) if _changes(node, zeros)]


def _changes(node: onnx.NodeProto, zeros: Set[str]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Dropout":
        _, ratio, training = [*node.input, "", ""][:3]
        return training != "" and zeros.isdisjoint((ratio, training))
    if node.op_type == "BatchNormalization":
        trains = attribute(node, "training_mode")
        return any(node.output[1:]) or (trains is not None and trains.i == 1)
    return node.op_type in RANDOM


def _zeros(graph: onnx.GraphProto) -> set[str]:
    """Return the constants of one element, here or in subgraphs, that are zero or False."""
    found = set()
    for inner in all_graphs(graph):
        small = [each for each in inner.initializer if each.dims in ([], [1])]
        values = {each.name: onnx.numpy_helper.to_array(each) for each in small}
        values.update({n.output[0]: v for n in inner.node if (v := constant_of(n)) is not None})
        found |= {name for name, array in values.items() if array.size == 1 and not array.any()}
    return found
