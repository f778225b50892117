"""Operators that TensorRT's parser takes apart, as models and as numpy computes them in halves.

Every function is a step by itself: numpy computes it in FP32 and rounds what it returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Half: TypeAlias = NDArray[Any]
"""An array of np.float16, which a test checks of the last step."""
ROWS = "(float[6,40] x) => (float[r,c] y)"
TWO = "(float[6,40] x, float[6,40] z) => (float[6,40] y)"
THREE = "(float[6,40] x, float[6,40] z, float[6,40] w) => (float[6,40] y)"


@dataclass(frozen=True)
class Apart:
    """An operator: its model's text and opset, and its steps in numpy, each rounded to halves."""

    text: str
    opset: int
    steps: Callable[..., Half]


def softmax(x: Half, axis: int = -1) -> Half:
    """Return one step: FP32 inside, as the parser has one layer of it."""
    power: Half = np.exp(x.astype(np.float32) - x.max(axis, keepdims=True))
    share: Half = (power / power.sum(axis, keepdims=True)).astype(np.float16)
    return share


def total(x: Half, axis: int = 1) -> Half:
    """Return a sum, in FP32 until it is stored."""
    found: Half = x.astype(np.float32).sum(axis, keepdims=True).astype(np.float16)
    return found


def wide(function: Callable[[NDArray[Any]], NDArray[Any]], x: Half) -> Half:
    """Return one step in FP32, rounded."""
    return function(x.astype(np.float32)).astype(np.float16)


def log_sum_exp(x: Half) -> Half:
    """Shift, exponential, sum, logarithm, shift back."""
    top = x.max(1, keepdims=True)
    shift = np.where(np.isinf(top), np.float16(0), top)
    found: Half = np.log(total(np.exp(x - shift))) + shift
    return found


def mod(x: Half, z: Half) -> Half:
    """Take off the multiple that the quotient, which is rounded, is cut to."""
    ratio = x / z
    found: Half = np.where(ratio >= 0, x - np.floor(ratio) * z, x - np.ceil(ratio) * z)
    return found


def batch_norm(x: Half, scale: Half, bias: Half, mean: Half, variance: Half) -> Half:
    """Five steps, with statistics that are computed."""
    s, b, m, v = (each.reshape(1, -1, 1, 1) for each in (scale, bias, mean, variance))
    found: Half = (x - m) / np.sqrt(v + np.float16(1e-3)) * s + b
    return found


APART: Mapping[str, Apart] = {
    "LogSoftmax": Apart(
        ROWS + " { y = LogSoftmax<axis = -1>(x) }", 13, lambda x: np.log(softmax(x))
    ),
    "LogSoftmax of all behind": Apart(
        ROWS + " { y = LogSoftmax<axis = 1>(x) }", 11, lambda x: np.log(softmax(x))
    ),
    "Mean of 2": Apart(TWO + " { y = Mean(x, z) }", 13, lambda x, z: (x + z) * np.float16(0.5)),
    "Mean of 3": Apart(
        THREE + " { y = Mean(x, z, w) }", 13, lambda x, z, w: (x + z + w) * np.float16(1 / 3)
    ),
    "Sum of 3": Apart(THREE + " { y = Sum(x, z, w) }", 13, lambda x, z, w: x + z + w),
    "ReduceSumSquare": Apart(
        ROWS + " { y = ReduceSumSquare<axes = [1]>(x) }", 13, lambda x: total(x * x)
    ),
    "ReduceSumSquare, axes read": Apart(
        ROWS + " <int64[1] a = {1}> { y = ReduceSumSquare(x, a) }", 18, lambda x: total(x * x)
    ),
    "ReduceLogSumExp": Apart(
        ROWS + " { y = ReduceLogSumExp<axes = [1]>(x) }", 13, log_sum_exp
    ),
    "ReduceLogSumExp, axes read": Apart(
        "(float[6,40] x) => (float[6] y) <int64[1] a = {1}>"
        " { y = ReduceLogSumExp<keepdims = 0>(x, a) }",
        18,
        lambda x: log_sum_exp(x)[:, 0],
    ),
    "Mish": Apart(
        ROWS + " { y = Mish(x) }",
        18,
        lambda x: x * np.tanh(wide(lambda v: np.log1p(np.exp(v)), x)),
    ),
    "HardSwish": Apart(
        ROWS + " { y = HardSwish(x) }",
        14,
        lambda x: x * wide(lambda v: np.clip(v * np.float32(1 / 6) + np.float32(0.5), 0, 1), x),
    ),
    "Swish": Apart(
        ROWS + " { y = Swish<alpha = 1.7>(x) }",
        24,
        lambda x: x * wide(lambda v: 1 / (1 + np.exp(-v)), x * np.float16(1.7)),
    ),
    "Mod": Apart(TWO + " { y = Mod<fmod = 1>(x, z) }", 13, mod),
    "BatchNormalization": Apart(
        "(float[6,5,2,4] x, float[5] s, float[5] b, float[5] m, float[5] v) => (float[6,5,2,4] y)"
        " { y = BatchNormalization<epsilon = 1e-3>(x, s, b, m, v) }",
        15,
        batch_norm,
    ),
}  # fmt: skip
"""By what they are, with the operator's name first."""
