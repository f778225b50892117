"""Outputs that no tolerance fits: classes, and what differs from run to run.

Class 4000 beside 4010 is not nearly right: a relative error says nothing of whole numbers and
truth values. ONNX Runtime draws random numbers on from run to run: a seed fixes where it begins,
no more. In training mode a BatchNormalization updates its statistics in the session, where nothing
else reads them.
"""

from collections.abc import Mapping, Set

import numpy as np
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
from precision_bisect.graphs.node_views import View

_CASTS = ("Cast", "CastLike")
_MOVES = ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that move the values of their first input and change none."""
TRAINED = frozenset(("Dropout", "BatchNormalization"))
"""Operators that change from run to run in training mode alone."""


def class_outputs(model: Model) -> dict[str, str]:
    """Return the outputs that hold integers or truth values, each with its type.

    A float output that is cast from one counts, too: an ArgMax whose result is then a float.
    """
    found, view = {}, View(model)
    for spec in model.outputs:
        origin = _origin(spec.name, view, model.elem_types)
        kind = _whole(model.elem_types.get(origin))
        if kind is not None:
            found[spec.name] = kind if origin == spec.name else f"cast from {kind}"
    return found


def _origin(name: str, view: View, elem_types: Mapping[str, int]) -> str:
    """Return the first tensor of whole numbers on the way back through casts and moves."""
    while _whole(elem_types.get(name)) is None:
        node = view.made_by(name, *_CASTS, *_MOVES)
        if node is None:
            return name
        name = node.input[0]
    return name


def _whole(elem_type: int | None) -> str | None:
    """Return the name of an integer or boolean type; None for every other."""
    if not elem_type:
        return None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return dtype.name if dtype.kind in "iub" else None


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
