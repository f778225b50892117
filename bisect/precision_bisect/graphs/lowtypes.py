"""The types that layers compute in: what they can hold, in numpy and in ONNX."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.precisions import HalfName, PrecisionName, QuantizedName


@dataclass(frozen=True, slots=True, kw_only=True)
class LowType:
    """A 16-bit float type.

    `largest` is its largest finite value, `smallest_normal` its smallest positive normal value,
    `digits` its significand bits with the hidden one. `lowest_opset` is the first ONNX opset whose
    Cast knows it.
    """

    name: HalfName
    onnx_type: int
    numpy_type: np.dtype[np.generic]
    largest: float
    smallest_normal: float
    digits: int
    lowest_opset: int

    @property
    def unit(self) -> float:
        """Half the distance from 1 to the next number."""
        return 2.0**-self.digits

    def round(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `array` rounded to this type (to nearest even) and back, of the same shape."""
        with np.errstate(all="ignore"):
            rounded: NDArray[np.float32] = array.astype(self.numpy_type).astype(np.float32)
        return rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedType:
    """An 8-bit type that values are scaled into.

    Scaled activations saturate at `smallest` and `largest`, scaled weights at -`largest` and
    `largest`. Below `smallest_normal` scaled values lose digits, in INT8 all of them. `digits` are
    significand bits with the hidden one, 0 for integers. `lowest_opset` is the first ONNX opset
    whose QuantizeLinear writes it.
    """

    name: QuantizedName
    onnx_type: int
    numpy_type: np.dtype[np.generic]
    smallest: float
    largest: float
    smallest_normal: float
    digits: int
    lowest_opset: int

    @property
    def unit(self) -> float:
        """Half the distance from 1 to the next number; of integers half a step of the largest."""
        return 2.0**-self.digits if self.digits else 0.5 / self.largest

    def store(self, scaled: NDArray[np.float32], smallest: float) -> NDArray[np.generic]:
        """Return scaled values as this type stores them, saturated, of the same shape."""
        with np.errstate(all="ignore"):
            # ml_dtypes rounds floats to nearest even by itself; a cast to an integer truncates.
            whole = np.rint(scaled) if self.numpy_type.kind == "i" else scaled
            stored: NDArray[np.generic] = np.clip(whole, smallest, self.largest).astype(
                self.numpy_type
            )
        return stored

    def round(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return scaled activations rounded to this type and back, of the same shape."""
        return self.store(array, self.smallest).astype(np.float32)


FP16 = LowType(
    name="fp16",
    onnx_type=onnx.TensorProto.FLOAT16,
    numpy_type=np.dtype(np.float16),
    largest=65504.0,
    smallest_normal=2.0**-14,
    digits=11,
    lowest_opset=1,
)
BF16 = LowType(
    name="bf16",
    onnx_type=onnx.TensorProto.BFLOAT16,
    numpy_type=np.dtype(ml_dtypes.bfloat16),
    largest=(2.0 - 2.0**-7) * 2.0**127,
    smallest_normal=2.0**-126,
    digits=8,
    lowest_opset=13,
)
INT8 = QuantizedType(
    name="int8",
    onnx_type=onnx.TensorProto.INT8,
    numpy_type=np.dtype(np.int8),
    smallest=-128.0,
    largest=127.0,
    smallest_normal=0.5,
    digits=0,
    lowest_opset=10,
)
FP8 = QuantizedType(
    name="fp8",
    onnx_type=onnx.TensorProto.FLOAT8E4M3FN,
    numpy_type=np.dtype(ml_dtypes.float8_e4m3fn),
    smallest=-448.0,
    largest=448.0,
    smallest_normal=2.0**-6,
    digits=4,
    lowest_opset=19,
)
LOW_TYPES: dict[PrecisionName, LowType] = {low.name: low for low in (FP16, BF16)}
"""The 16-bit float types by name."""
QUANTIZED: dict[PrecisionName, QuantizedType] = {kind.name: kind for kind in (INT8, FP8)}
"""The 8-bit types by name."""
KINDS: dict[PrecisionName, LowType | QuantizedType] = {**LOW_TYPES, **QUANTIZED}
"""All of them by name."""
