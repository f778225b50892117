"""How long one operator takes at least, by the roofline model.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52 (2009), section 3. Time is the larger of operations over peak
rate and bytes moved over bandwidth. The peaks are round figures of NVIDIA's A100 data sheet. Other
devices have other ratios, but costs only put plans in order here; limits are measured.
"""

from collections.abc import Mapping
from math import prod

import onnx

from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.node_views import Shape

# Bytes a millisecond: 1.5 TB/s.
_BYTES_PER_MS = 1.5e9
# FP32 operations a millisecond: 20 TFLOP/s, the A100's without TF32.
_HIGH_PER_MS = 2e10
# The same of products with TF32, on tensor cores: 150 TFLOP/s.
_TF32_PER_MS = 1.5e11
# FP16 operations a millisecond: 300 TFLOP/s on tensor cores.
_LOW_PER_MS = 3e11
# Results of a product from which on all multiprocessors have work. A round figure.
_FILLING = 1.5e5
# Channels, read and written, below which a convolution leaves tensor cores idle.
_TILE = 32
# Channels come in multiples of it where tensor cores multiply at all (cuDNN's guide).
_MULTIPLE = 8
LAYOUT_KERNELS = 2
"""Kernels beside a low convolution, which bring its values into the layout of tensor cores and
back. `_FILLING`, `_TILE` and this were chosen by the plans in benchmarks/results/gpu_fronts.json,
of the round values near the best."""
CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
KERNEL_MS = 2e-3
"""Milliseconds that a kernel of its own, such as a Cast, takes however little it does: its launch.
A round figure."""
HIGH_BYTES, LOW_BYTES = 4, 2
_MATRIX_AXES = 2


def operator_ms(product_ms: float, elements: float, *, high: bool) -> float:
    """Return how long an operator takes in the high type, or in the low one, in milliseconds.

    Its products take `product_ms`; `elements` are the values that it reads or writes.
    """
    return max(product_ms, elements * (HIGH_BYTES if high else LOW_BYTES) / _BYTES_PER_MS)


def product_ms(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], *, high: bool, tf32: bool = False
) -> float:
    """Return how long the multiply-adds of an operator take, in FP32 maybe with TF32.

    Few results leave part of the device idle, few channels part of the tensor cores.
    """
    operations = 2 * macs(node, shapes)
    if not operations:
        return 0.0
    out = shapes[node.output[0]]
    if node.op_type in ("MatMul", "Gemm") and (len(out) < _MATRIX_AXES or out[-2] == 1):
        # Of one row: weights are read once, by all multiprocessors, and no tensor core.
        return operations / _HIGH_PER_MS
    rate = _HIGH_PER_MS
    if tf32 or not high:
        cores = _TF32_PER_MS if high else _LOW_PER_MS
        rate = max(rate, cores * _used_of_tiles(node, shapes))
    filled = min(1.0, max(prod(out), 1) / _FILLING)
    return operations / (rate * filled)


def _used_of_tiles(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> float:
    """Return the share of the tensor cores that a convolution's channels use."""
    weight = shapes.get(node.input[1], ())
    if node.op_type not in CONVOLUTIONS or len(weight) < _MATRIX_AXES:
        return 1.0
    group = attribute(node, "group")
    written, read = weight[0] / (1 if group is None else group.i), weight[1]
    if written % _MULTIPLE or read % _MULTIPLE:
        return 0.0
    return min(1.0, written / _TILE) * min(1.0, read / _TILE)


def cast_ms(elements: float, kernel_ms: float) -> float:
    """Return how long a Cast of this many values takes, in milliseconds."""
    return kernel_ms + elements * (HIGH_BYTES + LOW_BYTES) / _BYTES_PER_MS


def macs(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> float:
    """Return the multiply-adds of an operator; 0 if it has few.

    0, too, if a shape that they depend on is not in `shapes`.
    """
    operands = [shapes.get(name) for name in node.input if name]
    out = shapes.get(node.output[0])
    first, second = (*operands, None, None)[:2]
    if out is None or first is None or second is None:
        return 0.0
    match node.op_type:
        case "Conv" | "DeformConv":
            return prod(out) * prod(second) / max(second[0], 1) if second else 0.0
        # Each input element meets the whole kernel, as each output element does in Conv.
        case "ConvTranspose":
            return prod(first) * prod(second) / max(second[0], 1) if second else 0.0
        case "MatMul":
            return float(prod(out) * first[-1]) if first else 0.0
        case "Gemm":
            transposed = attribute(node, "transA")
            return float(prod(out) * first[0 if transposed is not None and transposed.i else -1])
        case "Einsum":
            return _einsum(node, [shape for shape in operands if shape is not None])
        case "LSTM" | "GRU" | "RNN":
            recurrent = shapes.get(node.input[2], ())
            return float(prod(first[:2]) * (prod(second) + prod(recurrent)))
        case _:
            return 0.0


def _einsum(node: onnx.NodeProto, operands: list[Shape]) -> float:
    """Return the product of all dimensions that its equation names."""
    equation = attribute(node, "equation")
    text = equation.s.decode(errors="replace") if equation is not None else ""
    terms = text.replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, operands, strict=False):
        # Dimensions under an ellipsis come first.
        # An ellipsis stands for the leading dimensions, aligned at their end, as in broadcasting.
        letters = term.replace("...", "")
        for place, size in enumerate(shape[: len(shape) - len(letters)][::-1]):
            sizes[f"...{place}"] = max(size, sizes.get(f"...{place}", 1))
        sizes.update(zip(letters, shape[len(shape) - len(letters) :], strict=False))
    return float(prod(sizes.values()))
