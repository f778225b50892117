"""What a plan becomes: a typed graph, its weights beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.layer_table import LayerName


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedWeight:
    """The values of a stub: `source` as the model holds it, to be stored as `dtype`."""

    source: NDArray[Any]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Its size in a file."""
        return self.source.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGraph:
    """A strongly typed graph; initializers that are stubs have their values in `weights`.

    `guarded` are the FP32 layers that got a guard, in network order. Among the graphs of one
    writer, weights have the same name exactly where they are the same.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, TypedWeight]
    guarded: tuple[LayerName, ...]
