"""TF32: what FP32 products are on tensor cores unless a library is told otherwise.

Their operands are rounded to 10 bits of mantissa, to nearest; sums stay FP32. Measured on an H200
with ONNX Runtime 1.31.1 (benchmarks/results/tf32.json): matrix products agree with that to the
last bits of FP32, as do convolutions over two and three dimensions whose channels, in a group, are
multiples of four. Products of a single row, depthwise and one-dimensional convolutions and
transposed ones stayed FP32 there. So did a grouped convolution of a small image.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from precision_bisect.graphs.graph import copied, refill, subgraphs
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.types import ElemTypes

_NAME = "precision_bisect/tf32"
_SPLITTER, _LOWEST, _LARGEST = f"{_NAME}/splitter", f"{_NAME}/lowest", f"{_NAME}/largest"
# Bits of an FP32 mantissa that TF32 does not have.
_DROPPED_BITS = 13
_FACTOR = 2.0**_DROPPED_BITS + 1
_MOST_SCALED = 2.0**100 * _FACTOR
_CHANNELS, _PLANES = 4, (2, 3)
"""What cuDNN asked of convolutions there: channels in multiples of this, and these dimensions."""
OPERANDS = 2
# The first opset whose Clip reads its limits.
_LIMITS_READ = 11


def initializers() -> list[onnx.TensorProto]:
    """Return the constants that `rounded_operand` reads."""
    values = {_SPLITTER: _FACTOR, _LOWEST: -_MOST_SCALED, _LARGEST: _MOST_SCALED}
    return [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in values.items()]


def round_to_tf32(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values rounded to nearest even with 10 bits of mantissa, of the same shape."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    last_bit = (bits >> _DROPPED_BITS) & 1
    half = np.uint32(2 ** (_DROPPED_BITS - 1) - 1)
    kept = (bits + half + last_bit) & ~np.uint32(2**_DROPPED_BITS - 1)
    finite = np.isfinite(array)
    rounded: NDArray[np.float32] = np.where(finite, kept.view(np.float32), array)
    return rounded.reshape(array.shape)


def rounded_operand(name: str, rounded: str, opset: int) -> list[onnx.NodeProto]:
    """Return nodes that round a tensor: T. J. Dekker, "A floating-point technique", 1971, mul12.

    From 2^100 on, where the splitter would carry it out of FP32's range, it keeps more bits.
    """
    scaled, large, high = f"{rounded}/scaled", f"{rounded}/large", f"{rounded}/high"
    if opset >= _LIMITS_READ:
        limited = helper.make_node("Clip", [scaled, _LOWEST, _LARGEST], [large])
    else:
        limited = helper.make_node("Clip", [scaled], [large], min=-_MOST_SCALED, max=_MOST_SCALED)
    return [
        helper.make_node("Mul", [name, _SPLITTER], [scaled]),
        limited,
        helper.make_node("Sub", [large, name], [high]),
        helper.make_node("Sub", [large, high], [rounded]),
    ]


def with_rounded_operands(
    node: onnx.NodeProto, view: View, elem_types: ElemTypes
) -> list[onnx.NodeProto]:
    """Return a node that stays FP32 in every plan, its FP32 products with rounded operands.

    Those in its graphs are among them.
    """
    rounded = copied(node)
    for graph in subgraphs(rounded):
        inner = (with_rounded_operands(each, view, elem_types) for each in graph.node)
        refill(graph.node, [each for nodes in inner for each in nodes])
    if not is_fp32_product(node, view, elem_types):
        return [rounded]
    nodes = []
    for i, name in enumerate(node.input[:OPERANDS]):
        rounded.input[i] = f"{node.output[0]}/tf32/{i}"
        nodes += rounded_operand(name, rounded.input[i], view.opset)
    return [*nodes, rounded]


def is_fp32_product(node: onnx.NodeProto, view: View, elem_types: ElemTypes) -> bool:
    """Tell whether tensor cores take the operands of a node of any graph, which are FP32."""
    kinds = {elem_types.get(name) for name in node.input[:OPERANDS]} - {None}
    standard = node.domain in ("", "ai.onnx")
    return standard and kinds == {onnx.TensorProto.FLOAT} and is_product(node, view)


def is_product(node: onnx.NodeProto, view: View) -> bool:
    """Tell whether tensor cores take the node's first two operands, if they are FP32.

    Sizes that are not known are taken for large ones.
    """
    first, second = (view.shape(name) for name in (*node.input[:2], "", "")[:2])
    match node.op_type:
        # One row is a product of a matrix and a vector, which cuBLAS computes without tensor
        # cores.
        case "MatMul":
            ranks = [shape is None or len(shape) > 1 for shape in (first, second)]
            return all(ranks) and (first is None or first[-2] != 1)
        case "Gemm":
            return first is None or first[0] != 1
        case "Einsum":
            return len(node.input) == OPERANDS
        case "Conv":
            if second is None:
                return True
            # cuDNN takes tensor cores for whole blocks of channels, and for two or three
            # dimensions alone.
            channels = [size for size in second[:2] if isinstance(size, int)]
            planes = len(second) - 2
            return planes in _PLANES and not any(size % _CHANNELS for size in channels)
        case _:
            return False
