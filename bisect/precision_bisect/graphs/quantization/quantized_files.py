"""The 8-bit types that a model's own QuantizeLinear and DequantizeLinear have."""

from onnx import TensorProto

from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.load import Model
from precision_bisect.precisions import QuantizedName

_TYPES: dict[int, QuantizedName] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "int8",
    TensorProto.FLOAT8E4M3FN: "fp8",
    TensorProto.FLOAT8E5M2: "fp8",
}


def quantized_in_file(model: Model) -> tuple[QuantizedName, ...]:
    """Return the types that weakly typed builds must be allowed for it, bodies included."""
    kinds = set()
    for graph in all_graphs(model.proto.graph):
        for node in graph.node:
            if node.op_type == "QuantizeLinear":
                kinds.add(model.elem_types.get(node.output[0], 0))
            elif node.op_type == "DequantizeLinear":
                kinds.add(model.elem_types.get(node.input[0], 0))
    names = {_TYPES[kind] for kind in kinds if kind in _TYPES}
    return tuple(sorted(names))
