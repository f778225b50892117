"""Quantized values in numpy, bit for bit as ONNX's QuantizeLinear and DequantizeLinear."""

import numpy as np
from numpy.typing import NDArray

from precision_bisect.graphs.lowtypes import QuantizedType
from precision_bisect.graphs.quantization.scales import WeightScale


def quantized(
    weight: NDArray[np.float32], scale: WeightScale, kind: QuantizedType
) -> NDArray[np.generic]:
    """Return the stored form of a weight: of its shape, of the quantized type's numpy type."""
    values = weight.astype(np.float32, copy=False)
    # Weights are symmetric: -128 is left out.
    return kind.store(_scaled(values, scale.along(weight.ndim)), -kind.largest)


def dequantized(stored: NDArray[np.generic], scale: WeightScale) -> NDArray[np.float32]:
    """Return the FP32 values of a stored weight, in its shape."""
    values: NDArray[np.float32] = stored.astype(np.float32) * scale.along(stored.ndim)
    return values


def fake_quantized(
    values: NDArray[np.float32], scale: NDArray[np.float32] | np.float32, kind: QuantizedType
) -> NDArray[np.float32]:
    """Return activations after a round trip through Q/DQ, in their shape.

    `scale` broadcasts against them.
    """
    stored = kind.store(_scaled(values, scale), kind.smallest)
    left: NDArray[np.float32] = stored.astype(np.float32) * scale
    return left


def _scaled(
    values: NDArray[np.float32], scale: NDArray[np.float32] | np.float32
) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        scaled: NDArray[np.float32] = values / scale
    return scaled
