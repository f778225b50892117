"""The FP32 constants that layers read: weights in the file, and what nodes compute from them.

A `Constant` node, or a chain of nodes over constants, is a weight to its readers: it is rounded
once, with the layer that reads it, not at every trial.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.widen import rounded_where_declared
from precision_bisect.layer_table import Exclusion

_FLOAT = onnx.TensorProto.FLOAT
_MARKER = "precision_bisect/declared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Values by tensor name; `folded` are those that nodes compute, the others are initializers.

    The values of large initializers are the arrays of the model, not copies.
    """

    values: Mapping[str, NDArray[np.generic]]
    folded: frozenset[str]


def as_declared(model: Model, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the node as the file means it: rounded if its outputs are declared 16-bit."""
    return rounded_where_declared(node, dict(model.low_tensors), _MARKER)


def read_constants(model: Model, readers: frozenset[str]) -> Constants:
    """Return the FP32 constants that the nodes of these names read, settings apart.

    Raises ModelError when ONNX Runtime cannot load the nodes that compute some of them.
    """
    graph = model.proto.graph
    read = {
        name
        for node in graph.node
        if node.name in readers
        for i, name in enumerate(node.input)
        if i not in settings_of(node)
    }
    held = {
        tensor.name: model.weights[tensor.name]
        if tensor.name in model.weights
        else onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type == _FLOAT and tensor.name in read
    }
    folded = _folded(model, constant_outputs(model) & read)
    return Constants(values={**held, **folded}, folded=frozenset(folded))


def constant_outputs(model: Model) -> set[str]:
    """Return the FP32 tensors that nodes compute from constants only."""
    return {
        name
        for layer in model.table.layers
        if layer.exclusion is Exclusion.CONSTANT
        for name in layer.outputs
        if model.elem_types.get(name) == _FLOAT
    }


def _folded(model: Model, wanted: set[str]) -> dict[str, NDArray[np.generic]]:
    """Return the values of the `wanted` tensors, which depend only on constants."""
    if not wanted:
        return {}
    needed = set(wanted)
    chain: list[onnx.NodeProto] = []
    # Backwards from what is wanted: only nodes that contribute are run.
    for node in reversed(model.proto.graph.node):
        if needed.intersection(node.output):
            chain.extend(reversed(as_declared(model, node)))
            needed.update(node.input)
    # No inputs: ONNX Runtime computes the chain as it would in the model.
    graph = onnx.GraphProto(name="constants")
    graph.node.extend(reversed(chain))
    held = [tensor for tensor in model.proto.graph.initializer if tensor.name in needed]
    graph.initializer.extend(held)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted))
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=graph)
    proto.opset_import.extend(model.proto.opset_import)
    weights = {t.name: model.weights[t.name] for t in held if t.name in model.weights}
    return Session(proto, weights, threads=1).run({})
