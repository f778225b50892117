"""FP32 layers that need a guard: an addition of zero on an FP32 input from low layers.

TensorRT-RTX 1.7.1 turns Cast to FP32, matrix product or convolution, Cast to the low type into one
low kernel. It rounds the weights and says nothing. It also cannot build a recurrent layer right
behind a Cast. An Attention there becomes a low kernel, or its build fails or crashes. An addition
of zero prevents all that; Identity and a product with one do not.
"""

from collections.abc import Set

import onnx

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.layout import Placement
from precision_bisect.layer_table import Exclusion, LayerName

_DEMOTED = frozenset(("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose"))
_NOT_BUILT = frozenset(("LSTM", "GRU", "RNN"))
_ATTENDED = frozenset((0, 1, 2))
"""Query, key and value of an Attention: each that comes from low layers needs a guard."""
_MAY_BE_IDENTITY = frozenset(
    [
        "Mul",
        "Div",
        "Pow",
        "Sum",
        "Mean",
        "Max",
        "Min",
        "AveragePool",
        "LpPool",
        "MaxPool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Resize",
        "Upsample",
        "CumSum",
    ]
)
"""Operators that builders remove for certain constants or shapes, as a product with one."""


def islands(
    model: Model, placement: Placement, constants: Set[str]
) -> dict[LayerName, tuple[int, ...]]:
    """Return the FP32 layers that need guards, each with the positions of the inputs to guard.

    The value of such an input comes from low layers, directly or through nodes that only move
    values or may turn out to do nothing. It does not matter whether another FP32 layer reads the
    result: some of those are folded into this layer and do not protect it.
    """
    followers = {
        layer.name for layer in model.table.layers if layer.exclusion is Exclusion.FOLLOWER
    }
    rounded = set(placement.tensors)
    found = {}
    for node in model.proto.graph.node:
        if node.name in placement.nodes or node.name in placement.quantized:
            continue
        data = [
            i
            for i, name in enumerate(node.input)
            if name not in constants and model.elem_types.get(name) == onnx.TensorProto.FLOAT
        ]
        from_low = [i for i in data if node.input[i] in rounded]
        if not from_low:
            continue
        # A node that a builder may remove leaves the next layer right behind the Cast.
        if node.name in followers or (data == from_low[:1] and _may_be_identity(node)):
            rounded.update(node.output)
        elif node.op_type in _DEMOTED | _NOT_BUILT:
            found[LayerName(node.name)] = tuple(from_low[:1])
        elif node.op_type == "Attention" and (attended := _ATTENDED.intersection(from_low)):
            found[LayerName(node.name)] = tuple(sorted(attended))
    return found


def _may_be_identity(node: onnx.NodeProto) -> bool:
    return node.op_type in _MAY_BE_IDENTITY or node.op_type.startswith("Reduce")
