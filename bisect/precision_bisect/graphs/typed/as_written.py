"""What the file of a plan holds, before it is written: Casts that were added, bytes of weights."""

from collections.abc import Iterator
from math import ceil, prod

import onnx

from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.typed.added import is_added
from precision_bisect.graphs.typed.typed_graph import TypedGraph

_TYPES = onnx.TensorProto
# Bits of a value where several share a byte.
_PACKED_BITS: dict[int, int] = {
    _TYPES.INT2: 2,
    _TYPES.UINT2: 2,
    _TYPES.INT4: 4,
    _TYPES.UINT4: 4,
    _TYPES.FLOAT4E2M1: 4,
}
# Shapes, axes and indices, which are no weights.
_NO_WEIGHTS = frozenset((_TYPES.INT64, _TYPES.INT32, _TYPES.BOOL, _TYPES.STRING))


def casts_added(typed: TypedGraph) -> int:
    """Return how many Casts the file has that the model has not."""
    nodes = (node for graph in all_graphs(typed.proto.graph) for node in graph.node)
    return sum(node.op_type == "Cast" and is_added(node.name) for node in nodes)


def weight_bytes(typed: TypedGraph) -> int:
    """Return the bytes of all constants that are floats, or quantized ones."""
    return sum(
        ceil(prod(tensor.dims) * _bits(tensor.data_type) / 8)
        for tensor in _constants(typed.proto)
        if tensor.data_type not in _NO_WEIGHTS
    )


def _bits(kind: int) -> int:
    return _PACKED_BITS.get(kind) or 8 * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize


def _constants(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in all_graphs(proto.graph):
        yield from graph.initializer
        for node in graph.node:
            if node.op_type == "Constant":
                yield from (setting.t for setting in node.attribute if setting.HasField("t"))
