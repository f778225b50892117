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

_BYTES_PER_MS = 1.5e9
"""Bytes a millisecond: 1.5 TB/s."""
_HIGH_PER_MS = 2e10
"""FP32 operations a millisecond: 20 TFLOP/s, the A100's without TF32."""
_TF32_PER_MS = 1.5e11
"""The same of products with TF32, on tensor cores: 150 TFLOP/s."""
_LOW_PER_MS = 3e11
"""FP16 operations a millisecond: 300 TFLOP/s on tensor cores."""
KERNEL_MS = 2e-3
"""Milliseconds that a kernel of its own, such as a Cast, takes however little it does: its launch.
A round figure."""
HIGH_BYTES, LOW_BYTES = 4, 2


def operator_ms(macs: float, elements: float, *, high: bool, tf32: bool = False) -> float:
    """Return how long an operator takes in the high type, or in the low one, in milliseconds.

    `macs` are its multiply-adds, which FP32 may compute with TF32, `elements` the values that it
    reads or writes.
    """
    rate = (_TF32_PER_MS if tf32 else _HIGH_PER_MS) if high else _LOW_PER_MS
    return max(2 * macs / rate, elements * (HIGH_BYTES if high else LOW_BYTES) / _BYTES_PER_MS)


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
        case "Conv":
            return prod(out) * prod(second) / max(second[0], 1) if second else 0.0
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
