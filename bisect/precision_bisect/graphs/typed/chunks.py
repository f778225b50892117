"""Weights piece by piece: looking at one or converting it takes little memory."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from precision_bisect.graphs.quantization.scales import WeightScale

_CHUNK = 2**20
"""Elements in a piece: 4 MiB of FP32. A limit on memory: weights are the same whatever it is."""
THREADS = min(4, os.cpu_count() or 1)
"""Pieces at a time: one thread rounds 1.5 GB/s to FP16, and a disk takes little more from four."""

T = TypeVar("T")


def chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the values of `array` in C order, as flat pieces of at most 1 Mi elements.

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


def side_by_side(function: Callable[..., T], calls: Iterable[Sequence[Any]]) -> Iterator[T]:
    """Yield what a function returns for each call's arguments, in order, a few calls at a time."""
    remaining = iter(calls)
    with ThreadPoolExecutor(THREADS) as pool:
        while few := list(islice(remaining, THREADS)):
            yield from pool.map(function, *zip(*few, strict=True))


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
