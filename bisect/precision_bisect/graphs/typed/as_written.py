"""What the file of a plan holds, before it is written: Casts that were added, bytes of weights."""

from collections.abc import Iterator
from math import prod

import onnx

from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.typed.added import is_added
from precision_bisect.graphs.typed.typed_graph import TypedGraph

_TYPES = onnx.TensorProto
# Two values to a byte.
_HALF_BYTES = frozenset((_TYPES.INT4, _TYPES.UINT4, _TYPES.FLOAT4E2M1))
# Shapes, axes and indices, which are no weights.
_NO_WEIGHTS = frozenset((_TYPES.INT64, _TYPES.INT32, _TYPES.BOOL, _TYPES.STRING))


def casts_added(typed: TypedGraph) -> int:
    """Return how many Casts the file has that the model has not."""
    nodes = (node for graph in all_graphs(typed.proto.graph) for node in graph.node)
    return sum(node.op_type == "Cast" and is_added(node.name) for node in nodes)


def weight_bytes(typed: TypedGraph) -> int:
    """Return the bytes of all constants that are floats, or quantized ones."""
    return sum(
        (prod(tensor.dims) + 1) // 2
        if tensor.data_type in _HALF_BYTES
        else prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in _constants(typed.proto)
        if tensor.data_type not in _NO_WEIGHTS
    )


def _constants(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in all_graphs(proto.graph):
        yield from graph.initializer
        for node in graph.node:
            if node.op_type == "Constant":
                yield from (setting.t for setting in node.attribute if setting.HasField("t"))
