"""The result of writing a plan: a typed graph with its weights beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.lowtypes import QuantizedType
from precision_bisect.graphs.quantization.scales import WeightScale
from precision_bisect.layer_table import LayerName


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How a weight is stored in 8 bits: the type, and the scales it is divided by."""

    kind: QuantizedType
    scale: WeightScale


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedWeight:
    """The values of a stub: `source` as the model holds it, to be stored as `dtype`.

    `quantization` is None for a float type.
    """

    source: NDArray[Any]
    dtype: np.dtype[Any]
    quantization: Quantization | None = None

    @property
    def nbytes(self) -> int:
        """Its size in a file."""
        return self.source.size * self.dtype.itemsize

    @property
    def as_it_is(self) -> bool:
        """Whether it is stored as the model holds it."""
        return self.quantization is None and self.source.dtype == self.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGraph:
    """A strongly typed graph; initializers that are stubs have their values in `weights`.

    `guarded` are the FP32 layers that got a guard, in network order. Among the graphs of one
    writer, weights have the same name exactly where they are the same.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, TypedWeight]
    guarded: tuple[LayerName, ...]
