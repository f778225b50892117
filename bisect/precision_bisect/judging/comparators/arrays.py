"""Arrays made fit for Polygraphy's comparators, and reduced to the elements that decide."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_EPSILON = 2.220446049250313e-16
"""What Polygraphy puts in place of a zero reference before it divides."""
_SAFE = 2**62
"""Integers below this in magnitude can be subtracted in 64 bits."""
_MARGIN = 1e-3
"""How near to its limit rounding may still decide whether an element passes."""


def widened(
    got: NDArray[Any], want: NDArray[Any], *, as_float: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both arrays flat, in a type whose differences cannot wrap around.

    Polygraphy subtracts integers in their own type: 0 minus the least int32, which is what a cast
    of NaN gives, is negative there and passes any limit. Its quantile and its single metrics
    cannot take booleans at all. Float arrays keep their type, but for half precision, which
    Polygraphy widens too. `as_float` is for metrics that square and sum.
    """
    got, want = got.ravel(), want.ravel()
    if want.dtype.kind == "f":
        return (
            (got.astype(np.float32), want.astype(np.float32)) if want.itemsize < 4 else (got, want)
        )
    if as_float or any(not _subtractable(array) for array in (got, want)):
        return got.astype(np.float64), want.astype(np.float64)
    return got.astype(np.int64), want.astype(np.int64)


def _subtractable(array: NDArray[Any]) -> bool:
    if array.dtype.itemsize < 8:
        return True
    return bool(array.max() < _SAFE and array.min() > -_SAFE)


def differences(got: NDArray[Any], want: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return absolute and relative differences of widened arrays as Polygraphy computes them."""
    absolute = np.abs(got - want)
    if want.dtype.kind == "f":
        want = np.where(want == 0, want.dtype.type(_EPSILON), want)
    return absolute, absolute / np.abs(want)


def ratios(
    absolute: NDArray[Any], relative: NDArray[Any], atol: float, rtol: float
) -> NDArray[np.float64]:
    """Return each element's error as a multiple of its limit, absolute or relative, the milder."""
    return np.fmin(_multiple(absolute, atol), _multiple(relative, rtol))


def _multiple(error: NDArray[Any], limit: float) -> NDArray[np.float64]:
    wide = error.astype(np.float64)
    return wide / limit if limit else np.where(wide > 0, np.inf, wide)


def deciding(figures: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return where the elements are that decide an elementwise verdict: the worst and all close.

    An array passes elementwise exactly when every element does, and rounding can move an element
    across its limit only from close by.
    """
    close = np.flatnonzero(np.abs(figures - 1.0) < _MARGIN)
    return np.append(close, figures.argmax())
