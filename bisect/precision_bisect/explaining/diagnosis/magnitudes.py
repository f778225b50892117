"""Figures on the values of one tensor, collected over all samples."""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.graphs.lowtypes import LowType, QuantizedType

LOWEST_EXPONENT = -150
"""Least floor(log2|x|) of a float32, rounded down: the smallest positive one is 2^-149."""
_HIGHEST_EXPONENT = 150
"""Beyond a float32's largest exponent, 127, since values are counted in multiples of a scale."""
_FLOAT = np.finfo(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaled:
    """An 8-bit type with the scale of the tensor that it holds.

    `scale` is FP32 and broadcasts against the tensor. `channels` is the axis of an activation's
    channels, counted from the end if negative, for which the largest magnitude of each channel is
    wanted; None for none.
    """

    kind: QuantizedType
    scale: NDArray[np.float32]
    channels: int | None = None


Held: TypeAlias = LowType | Scaled
"""What holds a tensor when it is low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a value lies: the sample's number, and the index in its array."""

    sample: int
    index: tuple[int, ...]


@dataclass(slots=True)
class Magnitudes:
    """Figures of the finite values of a tensor; every share is one of the non-zero values.

    `beyond` counts values larger than the low type's largest, `small` those below its normal
    range, `flushed` those that become 0 in it. `noise` is the sum of the squared rounding errors,
    `cut` the part of it that comes from saturation, `faint` that from values below the normal
    range; `squares` is the sum of the squared values.

    `exponents` counts values by floor(log2(|x| / scale)), from `LOWEST_EXPONENT` on; zeros are
    only in `count`. `whole` is False once a value was no whole number. `scale` is the largest
    scale of what holds the tensor, 1 for a 16-bit type. `channels` has the largest magnitude of
    each channel, shape (channels,), where they are wanted.
    """

    largest: float = 0.0
    place: Position | None = None
    nonzero: int = 0
    beyond: int = 0
    small: int = 0
    flushed: int = 0
    squares: float = 0.0
    noise: float = 0.0
    cut: float = 0.0
    faint: float = 0.0
    count: int = 0
    whole: bool = True
    scale: float = 1.0
    channels: NDArray[np.float32] | None = None
    exponents: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(_HIGHEST_EXPONENT - LOWEST_EXPONENT, np.int64)
    )

    def add(self, array: NDArray[Any], held: Held, sample: int = 0) -> None:
        """Account for an array of any shape of one sample."""
        finite = np.isfinite(array)
        # One pass without a copy in the usual case that all is finite.
        values = array if finite.all() else np.where(finite, array, np.float32(0))
        magnitudes = np.abs(values)
        self.count += array.size
        self._find_largest(magnitudes, sample)
        self.whole = self.whole and bool((magnitudes == np.rint(magnitudes)).all())
        there = magnitudes > 0
        present = magnitudes[there]
        self.nonzero += present.size
        self.squares += float(np.square(present, dtype=np.float64).sum())
        if isinstance(held, Scaled):
            self.scale = float(held.scale.max())
            self._note_channels(magnitudes, held.channels)
            scale = held.scale
            if scale.ndim:
                scale = np.broadcast_to(scale, magnitudes.shape)[there]
            self._count(present, held.kind, scale)
        else:
            self._count(present, held, np.float32(1.0))

    def _count(
        self,
        present: NDArray[Any],
        kind: LowType | QuantizedType,
        scale: NDArray[np.float32] | np.float32,
    ) -> None:
        """Count what the low type does to magnitudes above 0, in multiples of `scale`."""
        with np.errstate(over="ignore"):
            scaled: NDArray[np.float32] = np.divide(present, scale, dtype=np.float32)
        # A quotient that became 0 or infinite has no exponent: it is counted in the first or last
        # bin.
        scaled = np.clip(scaled, _FLOAT.smallest_subnormal, _FLOAT.max)
        below = scaled < kind.smallest_normal
        self.small += int(below.sum())
        over = scaled > np.float32(kind.largest)
        self.beyond += int(over.sum())
        rounded = kind.round(scaled)
        self.flushed += int((rounded == 0).sum())
        # An overflow counts as saturation here: an infinite error would hide all others. `largest`
        # and `beyond` tell of it.
        error = np.minimum(rounded, np.float32(kind.largest)) * scale - present
        squared = np.square(error, dtype=np.float64)
        self.noise += float(squared.sum())
        self.cut += float(squared[over].sum())
        self.faint += float(squared[below].sum())
        # `frexp` gives a mantissa in [0.5, 1), so its exponent is one more than floor(log2).
        exponents = np.frexp(scaled)[1] - 1 - LOWEST_EXPONENT
        self.exponents += np.bincount(exponents, minlength=self.exponents.size)

    def _find_largest(self, magnitudes: NDArray[Any], sample: int) -> None:
        if magnitudes.size == 0 or not magnitudes.max() > self.largest:
            return
        flat = int(magnitudes.argmax())
        self.largest = float(magnitudes.reshape(-1)[flat])
        index = np.unravel_index(flat, magnitudes.shape)
        self.place = Position(sample=sample, index=tuple(int(i) for i in index))

    def _note_channels(self, magnitudes: NDArray[Any], axis: int | None) -> None:
        if axis is None or axis >= magnitudes.ndim or not magnitudes.size:
            return
        others = tuple(i for i in range(magnitudes.ndim) if i != axis % magnitudes.ndim)
        largest = magnitudes.max(axis=others)
        if self.channels is None or self.channels.shape != largest.shape:
            self.channels = largest
        else:
            self.channels = np.maximum(self.channels, largest)

    @property
    def small_share(self) -> float:
        """The share of values below the low type's normal range."""
        return self.small / self.nonzero if self.nonzero else 0.0

    @property
    def flushed_share(self) -> float:
        """The share of values that become 0 in the low type."""
        return self.flushed / self.nonzero if self.nonzero else 0.0

    @property
    def beyond_share(self) -> float:
        """The share of values beyond the low type's largest."""
        return self.beyond / self.nonzero if self.nonzero else 0.0

    @property
    def cut_share(self) -> float:
        """The share of the rounding noise that comes from saturation."""
        return self.cut / self.noise if self.noise else 0.0

    @property
    def faint_share(self) -> float:
        """The share of the rounding noise that comes from values below the normal range."""
        return self.faint / self.noise if self.noise else 0.0

    @property
    def mean_square(self) -> float:
        """The mean of the squares; 0 for no values."""
        return self.squares / self.count if self.count else 0.0

    @property
    def peak(self) -> float:
        """The largest magnitude over the root mean square; 0 if all values are 0."""
        return self.largest / math.sqrt(self.mean_square) if self.squares else 0.0

    @property
    def rounding(self) -> float:
        """The root mean square of the rounding errors, relative to that of the values."""
        return (self.noise / self.squares) ** 0.5 if self.squares else 0.0
