"""Weights piece by piece: looking at one or converting it takes little memory."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.quantization.scales import WeightScale

_CHUNK = 2**22
"""Elements in a piece: 16 MiB of FP32. A bound; nothing was measured."""


def chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the values of `array` in C order, as flat pieces of at most 4 Mi elements.

    A memory map is read through its file instead: pages of a map that were touched count as memory
    of the process until the kernel wants them back.
    """
    if isinstance(array, np.memmap) and array.filename is not None:
        total = math.prod(array.shape)
        with open(array.filename, "rb") as stream:  # noqa: PTH123 - may be bytes or a path
            stream.seek(array.offset)
            for start in range(0, total, _CHUNK):
                yield np.fromfile(stream, array.dtype, min(_CHUNK, total - start))
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]


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
