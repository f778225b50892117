"""Layers in INT8 or FP8: which of their inputs go through QuantizeLinear and DequantizeLinear.

As in TensorRT's explicit quantization: activations are quantized with one scale per tensor,
weights are stored quantized with one scale per output channel. Bias and outputs stay in the float
type that the layer is stored in.
"""

from dataclasses import dataclass

import onnx

from precision_bisect.precisions import QuantizedName
from precision_bisect.quantization.quantized_layers import OPERANDS, quantizable
from precision_bisect.quantization.scales import Scales
from precision_bisect.typed.forms import NoLowForm


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedForm:
    """The positions of the inputs that are quantized: activations, and weights by channel."""

    activations: tuple[int, ...]
    weights: tuple[int, ...]


def quantized_form(node: onnx.NodeProto, low: QuantizedName, scales: Scales) -> QuantizedForm:
    """Return which inputs of a node are quantized. Raises NoLowForm where it cannot be."""
    if not quantizable(node):
        raise NoLowForm(f"no {low.upper()} kernel for {node.op_type}")
    names = {i: node.input[i] for i in OPERANDS}
    for name in names.values():
        if name not in scales.weights and name not in scales.activations:
            raise NoLowForm(f"its input {name!r} has no calibrated scale")
    weights = tuple(i for i, name in names.items() if name in scales.weights)
    return QuantizedForm(
        activations=tuple(i for i in OPERANDS if i not in weights), weights=weights
    )
