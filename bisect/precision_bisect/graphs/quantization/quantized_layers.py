"""Which layers have a quantized kernel, and which of their inputs are quantized.

As in explicit quantization by TensorRT: the two operands of convolutions and matrix products are
quantized, biases and outputs are not.
"""

from collections.abc import Mapping

import onnx

from precision_bisect.graphs.constant_values import constant_outputs
from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.precisions import Pair, QuantizedName

QUANTIZABLE = frozenset(("Conv", "ConvTranspose", "MatMul", "Gemm"))
OPERANDS = (0, 1)
"""Positions of the inputs that are quantized; others are biases."""

_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))


def quantizable(node: onnx.NodeProto) -> bool:
    """Tell whether the node has a quantized kernel, its operands apart."""
    return node.domain in ("", "ai.onnx") and node.op_type in QUANTIZABLE


def not_quantizable(model: Model, low: QuantizedName) -> Mapping[LayerName, str]:
    """Return the candidates that have no quantized kernel, each with the reason."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    constants |= constant_outputs(model)
    nodes = {node.name: node for node in model.proto.graph.node}
    reasons = {}
    for name in model.table.names:
        node = nodes[name]
        if not quantizable(node):
            reasons[name] = f"no {low.upper()} kernel"
        # Scales per channel need the values when the graph is written.
        elif node.op_type in _CONVOLUTIONS and node.input[1] not in constants:
            reasons[name] = f"computed weights, {low.upper()} needs constants"
    return reasons


def quantized_layers(model: Model, pair: Pair) -> frozenset[str]:
    """Return the names of the layers that some plan quantizes, fixed ones among them."""
    return frozenset(
        str(name)
        for name, forms in forms_of(model.table, pair).items()
        if any(form.quantized for form in forms.all)
    )


def weight_axis(node: onnx.NodeProto, position: int, rank: int) -> int | None:
    """Return the axis of a weight's output channels; None where it has none.

    `position` is that of the weight among the node's inputs, `rank` its number of dimensions.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if position != 1 or rank < 2:
        return None
    transposed = attribute(node, "transB") if node.op_type == "Gemm" else None
    return 0 if transposed is not None and transposed.i else rank - 1
