"""The engines that a prediction may be for, and what each of them stores inside an operator.

Whatever the engine, the emulator rounds what a layer reads and stores. What happens in between is
the engine's own: FP32, as in tensor cores, unless a row of `ROWS` says otherwise. To add what is
known of an operator, add a row; `backends.emulation.semantics` does the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias, get_args

TargetName: TypeAlias = Literal["tensorrt", "tensorrt-rtx", "onnxruntime"]
TargetChoice: TypeAlias = Literal["auto", "tensorrt", "tensorrt-rtx", "onnxruntime", "all"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)
TARGET_CHOICES: tuple[TargetChoice, ...] = get_args(TargetChoice)
DEFAULT_TARGETS: tuple[TargetName, ...] = ("tensorrt",)
LABELS: Mapping[TargetName, str] = {
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
    "onnxruntime": "ONNX Runtime on CUDA",
}


class Inside(StrEnum):
    """What a layer that runs low stores in the low type before its result.

    FP32: nothing. SUM: the sum of a mean, and the number of its values. STEPS: the result of each
    step, as if every one were a layer.
    """

    FP32 = "fp32"
    SUM = "sum"
    STEPS = "steps"


STORED: Mapping[Inside, str] = {Inside.SUM: "sums of", Inside.STEPS: "each step of"}
"""What is stored, in words that a number of operators follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a target stores inside an operator, and how that is known."""

    op_type: str
    target: TargetName
    inside: Inside
    source: str


_SEEN = "benchmarks/operator_semantics.py on an H100"
_REDUCTIONS = (
    "ONNX Runtime, core/providers/cuda/reduction/reduction_ops.cc, ReduceComputeCore; " + _SEEN
)
ROWS = (
    Row(
        op_type="ReduceMean",
        target="onnxruntime",
        inside=Inside.SUM,
        source=f"{_REDUCTIONS}; seen on an H200",
    ),
    Row(op_type="ReduceSumSquare", target="onnxruntime", inside=Inside.STEPS, source=_REDUCTIONS),
    Row(op_type="ReduceLogSum", target="onnxruntime", inside=Inside.STEPS, source=_REDUCTIONS),
    Row(
        op_type="InstanceNormalization",
        target="onnxruntime",
        inside=Inside.STEPS,
        source="ONNX Runtime, core/providers/cuda/nn/instance_norm_impl.cu, for batches above 1; "
        + _SEEN,
    ),
    # exp(x) before 1 is taken off: off by 5e-4 wherever x is small.
    Row(op_type="Elu", target="onnxruntime", inside=Inside.STEPS, source=_SEEN),
    Row(op_type="Selu", target="onnxruntime", inside=Inside.STEPS, source=_SEEN),
    # Up to opset 20; from 21 on ONNX's function computes mean and variance in `stash_type`, FP32.
    Row(
        op_type="GroupNormalization",
        target="onnxruntime",
        inside=Inside.STEPS,
        source="ONNX Runtime, docs/OperatorKernels.md: no CUDA kernel, so ONNX's function runs",
    ),
)
OWN_ARITHMETIC = (
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
    *("MeanVarianceNormalization", "LpNormalization", "Attention"),
)
"""Operators of many steps, whose arithmetic is the engine's own business."""
_INSIDE = {(row.op_type, row.target): row.inside for row in ROWS}


def inside(op_type: str, target: TargetName) -> Inside:
    """Return what a target is known to store inside an operator of ONNX."""
    return _INSIDE.get((op_type, target), Inside.FP32)
