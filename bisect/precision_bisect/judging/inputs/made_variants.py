"""Samples with an input at the end of its range: made up, and called so."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precision_bisect.protocols import Sample


def range_by_type(array: NDArray[np.generic]) -> tuple[float, float] | None:
    """Return the range that a data type suggests: that of 8-bit integers; None for others."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize > 1:
        return None
    limits = np.iinfo(str(array.dtype))
    return float(limits.min), float(limits.max)


def at_ends(feeds: Sequence[Sample], name: str, ends: tuple[float, float]) -> list[Sample]:
    """Return samples with an input's largest value at the upper end, and its least at the lower.

    All its values move by the same, within the range: positions stay as far apart.
    """
    variants: list[Sample] = []
    for feed in feeds:
        array = feed[name].astype(np.float64)
        for end, edge in ((ends[1], array.max()), (ends[0], array.min())):
            moved = np.asarray(np.clip(array + (end - edge), *ends))
            variants.append({**feed, name: moved.astype(feed[name].dtype)})
    return variants
