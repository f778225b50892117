"""The scales of a quantized model, as explicit quantization in TensorRT uses them.

All are symmetric: the zero point is 0. Activations have one scale per tensor, weights one per
output channel. A value v is stored as round(v / scale), to nearest even, within the range of the
type (`lowtypes.QUANTIZED`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightScale:
    """The scales of one weight, all positive.

    `values` is FP32 of shape (channels,) along `axis`, or of shape () where `axis` is None: one
    scale for the whole tensor.
    """

    axis: int | None
    values: NDArray[np.float32]

    def along(self, rank: int) -> NDArray[np.float32]:
        """Return the scales in a shape that broadcasts against the weight of that rank."""
        if self.axis is None:
            return self.values
        shape = [1] * rank
        shape[self.axis] = -1
        return self.values.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scales:
    """The scales of activations by tensor name, and of weights by their tensor's name.

    Both have an entry for every tensor that a candidate or a layer fixed to a quantized type would
    read quantized.
    """

    activations: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, WeightScale] = field(default_factory=dict)
