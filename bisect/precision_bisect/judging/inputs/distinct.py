"""Which samples say something new: equal ones, and those as near as copies, are one sample again.

Floats are compared by their distance, 8-bit images likewise, everything else by its bytes. Large
arrays are compared by sketches: sums with random signs, whose distances are those of the arrays
within about 5%.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from precision_bisect.graphs.fp32_outputs import not_finite
from precision_bisect.protocols import Sample

NEAR = 2.0**-9
"""Share of an input's norm within which two samples are one. The copies that judge rounding luck
change what FP16 holds exactly by 2**-10 (`copies.py`): two of them are 1.4 * 2**-10 apart."""
_REPEATS = "what is equal, or nearer than FP16's steps, counts once and tells no more; give others"
# Sums of a sketch. A prime, so that neighbours in no image share a sum row by row.
_WIDTH = 251
# Rows that are summed at a time: a bound on memory.
_ROWS = 4096


class Distinct(NamedTuple):
    """For each sample the number of the first that is equal, and of the first that is as near."""

    equal: Sequence[int]
    near: Sequence[int]

    @classmethod
    def all_of(cls, count: int) -> "Distinct":
        """Return that each of so many samples is new."""
        return cls(range(count), range(count))

    @property
    def remark(self) -> str:
        """How many samples are new, in words; "" where all are."""
        count, new = len(self.near), len({*self.near})
        return f"of {count} samples {new} {'is' if new == 1 else 'are'} distinct: {_REPEATS}" * (
            new < count
        )

    def of(self, numbers: Iterable[int]) -> set[int]:
        """Return the first ones of the distinct samples among these."""
        return {self.near[number] for number in numbers}

    def drawn(self, count: int, seed: int) -> Sequence[int]:
        """Return so many distinct samples at random, with all that are as near."""
        firsts = sorted({*self.near})
        order = np.random.default_rng((seed, len(firsts), count)).permutation(firsts)
        drawn = {*map(int, order[:count])}
        return [number for number, first in enumerate(self.near) if first in drawn]


class _Digest(NamedTuple):
    """A sample's bytes, those of what has no distance, and the sketches of what has."""

    whole: bytes
    exact: bytes
    sketches: Sequence[NDArray[np.float64]]


def distinct(samples: Iterable[Sample]) -> Distinct:
    """Compare samples, each of which is asked for once."""
    equal: list[int] = []
    groups: defaultdict[bytes, list[int]] = defaultdict(list)
    first: dict[bytes, int] = {}
    sketches: dict[int, Sequence[NDArray[np.float64]]] = {}
    for number, sample in enumerate(samples):
        digest = _digest(sample)
        equal.append(first.setdefault(digest.whole, number))
        if equal[-1] == number:
            groups[digest.exact].append(number)
            sketches[number] = digest.sketches
    leaders: dict[int, int] = {}
    for group in groups.values():
        leaders |= _leaders(group, [sketches[number] for number in group])
    return Distinct(equal, [leaders[number] for number in equal])


def _leaders(
    numbers: Sequence[int], sketches: Sequence[Sequence[NDArray[np.float64]]]
) -> Mapping[int, int]:
    """Return for each sample the first one that it is near to, which is near to no earlier one."""
    inputs = [np.stack(column) for column in zip(*sketches, strict=True)]
    squares = [np.einsum("ij,ij->i", matrix, matrix) for matrix in inputs]
    free = np.ones(len(numbers), bool)
    leaders: dict[int, int] = {}
    for place in range(len(numbers)):
        if not free[place]:
            continue
        near = free.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            for rows, square in zip(inputs, squares, strict=True):
                # The square of the distance by one product of matrices, not by a difference for
                # each pair.
                apart = square + square[place] - 2 * (rows @ rows[place])
                near &= apart <= NEAR**2 * np.maximum(square, square[place])
        near[place] = True
        free &= ~near
        leaders |= {numbers[other]: numbers[place] for other in map(int, np.flatnonzero(near))}
    return leaders


def _digest(sample: Sample) -> _Digest:
    whole, exact = hashlib.sha256(), hashlib.sha256()
    sketches = []
    for name, array in sorted(sample.items()):
        head = f"{name}\0{array.dtype}\0{array.shape}\0".encode()
        # An array of objects has addresses for bytes.
        is_text = array.dtype.hasobject
        content = repr(array.ravel().tolist()).encode() if is_text else array.tobytes()
        whole.update(head + content)
        if _has_distance(array):
            exact.update(head)
            if not_finite(array):
                exact.update(np.isfinite(array).tobytes())
            sketches.append(_sketch(array))
        else:
            exact.update(head + content)
    return _Digest(whole.digest(), exact.digest(), sketches)


def _has_distance(array: NDArray[Any]) -> bool:
    """Tell whether values near each other mean the same: 8-bit numbers do as pixels alone."""
    pixels = array.dtype.kind in "iu" and array.dtype.itemsize == 1 and array.ndim > 2
    return array.dtype.kind == "f" or pixels


def _sketch(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return few numbers whose distances are those of the arrays; small arrays as they are."""
    values = array.ravel()
    if array.dtype.kind == "f":
        values = np.nan_to_num(values, posinf=0, neginf=0)
    if values.size <= _WIDTH:
        return values.astype(np.float64)
    signs = _signs(values.size)
    sums = np.zeros(_WIDTH)
    for start in range(0, values.size, step := _WIDTH * _ROWS):
        part = values[start : start + step].astype(np.float64) * signs[start : start + step]
        part = np.append(part, np.zeros(-part.size % _WIDTH))
        sums += part.reshape(-1, _WIDTH).sum(0)
    return sums


@lru_cache(maxsize=4)
def _signs(size: int) -> NDArray[np.int8]:
    return np.random.default_rng(0).integers(0, 2, size, np.int8) * np.int8(2) - np.int8(1)
