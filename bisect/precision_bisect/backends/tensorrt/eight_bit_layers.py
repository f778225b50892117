"""What TensorRT has 8-bit kernels for, and on which GPUs."""

from precision_bisect.backends.tensorrt.flavour import FlavourName
from precision_bisect.layer_table import LayerName
from precision_bisect.model.load import Model
from precision_bisect.precisions import QUANTIZED_NAMES, Pair

FP8_CAPABILITY = "8.9"
"""The lowest compute capability with FP8; for lower ones every build fails."""
_WITHOUT_KERNEL = {"tensorrt": frozenset[str](), "tensorrt-rtx": frozenset(("ConvTranspose",))}
"""Operators that are built in the float type though their operands were quantized (TensorRT-RTX
1.7.1)."""


def has_fp8(capability: str) -> bool:
    """Tell whether GPUs of a compute capability, such as "8.9", compute in FP8."""
    return _number(capability) >= _number(FP8_CAPABILITY)


def without_kernel(name: FlavourName, model: Model, pair: Pair) -> dict[LayerName, str]:
    """Return the candidates that the library quantizes without computing in 8 bits, and why."""
    if pair.low not in QUANTIZED_NAMES:
        return {}
    return {
        layer.name: f"{name} has no {pair.low} kernel for {layer.op_type}"
        for layer in model.table.candidates
        if layer.op_type in _WITHOUT_KERNEL[name]
    }


def _number(capability: str) -> tuple[int, ...]:
    # As numbers: "12.0" sorts before "8.9" as text.
    return tuple(map(int, capability.split(".")))
