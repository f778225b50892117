"""The result of writing a plan: a typed graph with its weights beside it.

Weights are looked at and converted piece by piece, which takes little memory.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.lowtypes import QuantizedType
from precision_bisect.graphs.quantization.scales import WeightScale

# Elements in a piece: 4 MiB of FP32. A limit on memory: weights are the same whatever it is.
_CHUNK = 2**20
THREADS = min(8, os.cpu_count() or 1)
"""Pieces at a time: with four, 13 GB took 23 s on 16 cores, and writing was 3 s of that."""


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
        return self.source.size * self.dtype.itemsize

    @property
    def as_it_is(self) -> bool:
        """Whether it is stored as the model holds it."""
        return self.quantization is None and self.source.dtype == self.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGraph:
    """A strongly typed graph; initializers that are stubs have their values in `weights`.

    Among the graphs of one writer, weights have the same name exactly where they are the same.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, TypedWeight]


def starts(array: NDArray[Any]) -> range:
    """Return where each `piece` of an array begins, in C order."""
    return range(0, array.size, _CHUNK)


def piece(array: NDArray[Any], start: int) -> NDArray[Any]:
    """Return the values of `array` from `start` on in C order, flat, at most 1 Mi elements.

    A memory map is read through its file instead: pages of a map that were touched count as memory
    of the process until the kernel wants them back.
    """
    if isinstance(array, np.memmap) and array.filename is not None:
        count, skipped = min(_CHUNK, array.size - start), start * array.itemsize
        return np.fromfile(array.filename, array.dtype, count, offset=array.offset + skipped)
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return flat[start : start + _CHUNK]


def chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield every `piece` of an array."""
    return (piece(array, start) for start in starts(array))


def converted(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `array` as `dtype`, rounded to nearest even; beyond its range to infinity."""
    with np.errstate(all="ignore"):
        return array.astype(dtype, copy=False)


def scales_of(scale: WeightScale, shape: Sequence[int], start: int, size: int) -> WeightScale:
    """Return the scales of the `size` elements from `start` on of a flattened weight of `shape`.

    There is one scale per element, along axis 0.
    """
    if scale.axis is None:
        return scale
    inner = math.prod(shape[scale.axis + 1 :])
    channels = np.arange(start, start + size) // inner % shape[scale.axis]
    return WeightScale(axis=0, values=scale.values[channels])
