"""What the values of one tensor come to, over all samples."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.lowtypes import LowType

LOWEST_EXPONENT = -150
"""Of a float32: the smallest positive one is 2^-149."""
_HIGHEST_EXPONENT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value lies: the sample's number, and the index in its array."""

    sample: int
    index: tuple[int, ...]


@dataclass(slots=True)
class Magnitudes:
    """Figures of the finite values of a tensor; every share is one of the non-zero values.

    `small` counts what lies below the low type's normal range, `flushed` what becomes 0 in it,
    `infinite` what is NaN or infinite in FP32 already. `noise` is the sum of the squared rounding
    errors, `squares` that of the squared values. `exponents` counts values by floor(log2|x|), from
    `LOWEST_EXPONENT` on; values of 0 are in no count but `count`.
    """

    largest: float = 0.0
    place: Place | None = None
    nonzero: int = 0
    small: int = 0
    flushed: int = 0
    infinite: int = 0
    squares: float = 0.0
    noise: float = 0.0
    count: int = 0
    exponents: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(_HIGHEST_EXPONENT - LOWEST_EXPONENT, np.int64)
    )

    def add(self, array: NDArray[Any], low: LowType, sample: int = 0) -> None:
        """Account for an array of any shape of one sample."""
        finite = np.isfinite(array)
        values = array if finite.all() else np.where(finite, array, np.float32(0))
        magnitudes = np.abs(values)
        self.count += array.size
        self.infinite += array.size - int(finite.sum())
        self._find_largest(magnitudes, sample)
        present = magnitudes[magnitudes > 0]
        self.nonzero += present.size
        self.small += int((present < low.smallest_normal).sum())
        self.squares += float(np.square(present, dtype=np.float64).sum())
        rounded = low.round(present)
        self.flushed += int((rounded == 0).sum())
        # What overflows is counted as far as the type reaches: the rest is told by `largest`.
        error = np.minimum(rounded, np.float32(low.largest)) - present
        self.noise += float(np.square(error, dtype=np.float64).sum())
        exponents = np.frexp(present)[1] - 1 - LOWEST_EXPONENT
        self.exponents += np.bincount(exponents, minlength=self.exponents.size)

    def _find_largest(self, magnitudes: NDArray[Any], sample: int) -> None:
        if magnitudes.size == 0 or not magnitudes.max() > self.largest:
            return
        flat = int(magnitudes.argmax())
        self.largest = float(magnitudes.reshape(-1)[flat])
        index = np.unravel_index(flat, magnitudes.shape)
        self.place = Place(sample=sample, index=tuple(int(i) for i in index))

    @property
    def small_share(self) -> float:
        """The share of values below the low type's normal range."""
        return self.small / self.nonzero if self.nonzero else 0.0

    @property
    def flushed_share(self) -> float:
        """The share of values that become 0 in the low type."""
        return self.flushed / self.nonzero if self.nonzero else 0.0

    @property
    def mean_square(self) -> float:
        """The mean of the squares; 0 for no values."""
        return self.squares / self.count if self.count else 0.0

    @property
    def rounding(self) -> float:
        """The root mean square of the rounding errors, relative to that of the values."""
        return (self.noise / self.squares) ** 0.5 if self.squares else 0.0
