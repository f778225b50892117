"""What TensorRT has no low kernels for, or only on some GPUs."""

from precision_bisect.backends.tensorrt.flavour import FlavourName
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import HALF_NAMES, PrecisionName

FP8_CAPABILITY = "8.9"
"""The lowest compute capability with FP8; for lower ones every build fails."""
_WITHOUT_KERNEL = {"int8": "ConvTranspose", "fp8": "ConvTranspose", "bf16": "ConvTranspose"}
"""Operators that TensorRT-RTX 1.7.1 parses in a type, and does not build or builds in another."""
_RECURRENT = ("GRU", "LSTM", "RNN")
_LENGTHS = 4
"""The position of a recurrence's `sequence_lens`."""


def has_fp8(capability: str) -> bool:
    """Tell whether GPUs of a compute capability, such as "8.9", compute in FP8."""
    return _number(capability) >= _number(FP8_CAPABILITY)


def without_kernel(name: FlavourName, model: Model, kind: PrecisionName) -> dict[LayerName, str]:
    """Return the candidates that the library parses in a type without a kernel, and why."""
    return {
        layer.name: f"{name} has no {kind} kernel for {layer.op_type}"
        for layer in model.table.candidates
        if name == "tensorrt-rtx" and layer.op_type == _WITHOUT_KERNEL.get(kind)
    }


def refused_by_every_parser(model: Model, kind: PrecisionName) -> dict[LayerName, str]:
    """Return the candidates that no parser of TensorRT takes in a type that ONNX has, and why.

    It masks short sequences with an FP32 zero: RNNHelpers.cpp of github.com/onnx/onnx-tensorrt for
    10.0 to 10.10, and TensorRT-RTX 1.7.1. To a library that is there, its parser says so itself.
    """
    if kind not in HALF_NAMES:
        return {}
    nodes = {node.name: node for node in model.proto.graph.node}
    return {
        layer.name: f"TensorRT's parser takes no {layer.op_type} with sequence_lens in {kind}"
        for layer in model.table.candidates
        if layer.op_type in _RECURRENT and any(nodes[layer.name].input[_LENGTHS : _LENGTHS + 1])
    }


def _number(capability: str) -> tuple[int, ...]:
    # As numbers: "12.0" sorts before "8.9" as text.
    return tuple(map(int, capability.split(".")))
