"""The engines that a prediction may be for: what each stores inside an operator, and refuses.

Whatever the engine, the emulator rounds what a layer reads and stores. What happens in between is
the engine's own: FP32, as in tensor cores, unless a table says otherwise. That of ONNX Runtime is
`_KNOWN`. That of TensorRT is `parser_steps.json`, which `benchmarks/engines/rtx_steps.py` writes:
what its parser takes apart, and its builder computes one by one. The steps themselves are written
in `backends.emulation.steps`. What its parser refuses in a type that ONNX has, and takes only at
the border of the network, is in `parser_conditions.json`, which `rtx_conditions.py` writes there.
What ONNX Runtime has no 16-bit kernel of is in `low_kernels.json`: rows with an opset are read off
its documentation, those with none off docs/engines/onnxruntime-cuda.json.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, get_args

TargetName: TypeAlias = Literal["tensorrt", "tensorrt-rtx", "onnxruntime"]
TargetChoice: TypeAlias = Literal["auto", "tensorrt", "tensorrt-rtx", "onnxruntime", "all"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)
DEFAULT_TARGETS: tuple[TargetName, ...] = ("tensorrt",)
LABELS: Mapping[TargetName, str] = {
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
    "onnxruntime": "ONNX Runtime on CUDA",
}
TF32 = "tf32"
"""The case in which FP32 products round their inputs, as libraries run them unless told."""
FUSED = "fused"
"""The variant of a model that has its norms put together."""
TF32_BY_DEFAULT: frozenset[str] = frozenset(("tensorrt", "tensorrt-rtx", "onnxruntime"))
"""Engines that run FP32 products in TF32 unless told otherwise, and so does trtexec. Polygraphy
turns it off."""


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

# What is known of operators in ONNX Runtime on CUDA, each with its source in that engine's code.
# All were seen on an H100 or H200, too (benchmarks/operator_semantics.py). Mean has no kernel that
# runs low there. Scatters that add or multiply, and CumSum, store each value on every target
# (`recurrences`): 8,000 times 0.4 give 1024 there (seen on an H200, November 2026).
_KNOWN: Mapping[str, Inside] = {
    # core/providers/cuda/reduction/reduction_ops.cc, ReduceComputeCore
    "ReduceMean": Inside.SUM,
    "ReduceSumSquare": Inside.STEPS,
    "ReduceLogSum": Inside.STEPS,
    # core/providers/cuda/nn/instance_norm_impl.cu: the kernel for batches above 1
    "InstanceNormalization": Inside.STEPS,
    "Elu": Inside.STEPS,
    "Selu": Inside.STEPS,
    # core/providers/cuda/reduction/reduction_ops.cc, log_sum_exp: each buffer is of the type.
    # 70,000 values of 0.9 give inf for 12.06 along each axis (seen on an H200, November 2026).
    "ReduceLogSumExp": Inside.STEPS,
    # core/providers/cuda/math/variadic_elementwise_ops.cc: above two inputs each sum is stored.
    # 21 times 30000 less 19 times 30000 give inf (seen on an H200, November 2026).
    "Sum": Inside.STEPS,
    # Kernels whose arithmetic is FP16's: errors as in docs/engines/onnxruntime-cuda.md, most to
    # three digits. HardSwish multiplies by FP16's sixth; here by an exact one, as TensorRT does.
    "Gelu": Inside.STEPS,
    "HardSwish": Inside.STEPS,
    "RotaryEmbedding": Inside.STEPS,
    "Softsign": Inside.STEPS,
    # No kernel, so ONNX's function.
    "GroupNormalization": Inside.STEPS,
    "Mish": Inside.STEPS,
    # core/providers/cuda/rnn: cuDNN with FP16 as its type of arithmetic (`cudnn_cells`)
    "LSTM": Inside.STEPS,
    "GRU": Inside.STEPS,
    "RNN": Inside.STEPS,
}
OWN_ARITHMETIC = (
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
    *("MeanVarianceNormalization", "LpNormalization", "Attention"),
)
"""Operators of many steps, whose arithmetic is the engine's own business."""


def inside(op_type: str, target: TargetName) -> Inside:
    """Return what a target stores inside an operator of ONNX, in some of its forms at least."""
    if target == "onnxruntime":
        return _KNOWN.get(op_type, Inside.FP32)
    rows = parser_steps()["operators"].get(op_type, ())
    return Inside.STEPS if any(row["inside"] == "steps" for row in rows) else Inside.FP32


def parser_steps() -> Mapping[str, Any]:
    """Return what TensorRT's parser makes of each operator, with the version that was asked."""
    return _table("parser_steps.json")


def parser_conditions() -> Mapping[str, Any]:
    """Return what TensorRT's parser asks of an operator's type and place, with the version."""
    return _table("parser_conditions.json")


def low_kernels() -> Mapping[str, Any]:
    """Return the first and last opset at which ONNX Runtime's CUDA provider runs an operator low.

    In a 16-bit type; only of those that it lacks at some opset, None where it has none at any.
    """
    return _table("low_kernels.json")


def written_out() -> Mapping[str, Any]:
    """Return the operators that engines take in pieces alone, by first opset, with versions."""
    return _table("written_out.json")


@cache
def _table(name: str) -> Mapping[str, Any]:
    text = files("precision_bisect.settings").joinpath(name).read_text(encoding="utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table
