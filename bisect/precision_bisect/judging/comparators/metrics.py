"""The arithmetic of Polygraphy's metrics: for a run's verdicts, and for those on the target.

Differences divide by the reference, which is Polygraphy's second runner; for PSNR and SNR it is
the signal, the first. Polygraphy itself spends milliseconds per output on statistics for its log.
numpy alone and Python 3.9: `run_onnxruntime.py` takes these definitions along.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

DIFFERENCES = ("elementwise", "max", "mean", "quantile")
"""The metrics with an absolute and a relative limit."""
_EPSILON = 2.220446049250313e-16
"""What stands for a reference of zero in relative errors, as in Polygraphy."""
_SAFE = 2**62
"""Integers below this in magnitude can be subtracted in 64 bits."""
_ABOVE = 1.0 + 2.0**-52


class CannotJudge(Exception):
    """The model cannot be judged here; the message says why, in one sentence."""


def multiple(limits: dict[str, Any], atol: float, rtol: float, got: Any, want: Any) -> float:
    """Return the error of an array as a multiple of its limits, 1 at the most where it passes.

    `limits` name the `metric`, and the `quantile`.
    """
    if got.shape != want.shape or (got.dtype.kind == "f" and not np.isfinite(got).all()):
        return math.inf
    if not want.size:
        return 0.0
    metric = limits["metric"]
    if metric in DIFFERENCES:
        got, want = widened(got, want, as_float=False)
        absolute = np.abs(got - want)
        is_float = want.dtype.kind == "f"
        divisor = np.where(want == 0, want.dtype.type(_EPSILON), want) if is_float else want
        relative = absolute / np.abs(divisor)
        if metric == "elementwise":
            return float(np.fmin(_over(absolute, atol), _over(relative, rtol)).max())
        figures = [_statistic(limits, errors) for errors in (absolute, relative)]
        return float(np.fmin(_over(figures[0], atol), _over(figures[1], rtol)))
    got, want = widened(got, want, as_float=True)
    if metric in ("psnr", "snr"):
        value = _decibels(metric, got, want)
        return float(_agreed(10.0 ** min((atol - value) / 20.0, 300.0), value >= atol))
    if metric == "l2":
        return float(_over(float(np.sqrt(np.sum((got - want) ** 2))), atol))
    if metric == "cosine":
        value = _cosine(got, want)
        return float(_agreed((1.0 - value) / atol, value >= 1.0 - atol))
    raise CannotJudge(f"the metric {metric!r} is not known here")


def widened(got: Any, want: Any, *, as_float: bool) -> tuple[Any, Any]:
    """Return both arrays flat, in a type whose differences cannot wrap around.

    Polygraphy subtracts integers in their own type: 0 minus the least int32, which is what a cast
    of NaN gives, is negative there and passes any limit. Float arrays keep their type, but for
    half precision, which Polygraphy widens too. `as_float` is for metrics that square and sum.
    """
    got, want = got.ravel(), want.ravel()
    if want.dtype.kind == "f":
        kind: Any = np.float32 if want.itemsize < 4 else want.dtype
    else:
        kind = np.float64 if as_float or not (_whole(got) and _whole(want)) else np.int64
    return got.astype(kind, copy=False), want.astype(kind, copy=False)


def _whole(array: Any) -> bool:
    """Tell whether differences of such values are whole numbers of 64 bits."""
    return array.itemsize < 8 or bool(array.max() < _SAFE and array.min() > -_SAFE)


def _over(error: Any, limit: float) -> Any:
    """Return errors as multiples of a limit; without one, anything but zero is infinite."""
    wide = np.asarray(error, np.float64)
    if not limit:
        return np.where(wide > 0, np.inf, wide)
    return _agreed(wide / limit, wide <= limit)


def _agreed(ratio: Any, passed: Any) -> Any:
    """Return multiples of a limit on the verdict's side, where rounding put them on the other."""
    return np.where(passed, np.minimum(ratio, 1.0), np.maximum(ratio, _ABOVE))


def _statistic(limits: dict[str, Any], errors: Any) -> float:
    """Return the statistic of the errors that the metric is about."""
    if limits["metric"] == "quantile":
        return float(np.quantile(errors, limits["quantile"]))
    return float(errors.max() if limits["metric"] == "max" else errors.mean(dtype=np.float32))


def _decibels(metric: str, got: Any, want: Any) -> float:
    """Return the ratio of the reference to the noise in decibels."""
    noise = np.mean((want - got) ** 2)
    if noise == 0:
        return math.inf
    if metric == "psnr":
        peak = float(want.max())
        return 20 * math.log10(peak if peak > 0 else 1.0) - 10 * math.log10(float(noise))
    signal = np.mean(want**2)
    return 10 * math.log10(float(signal / noise)) if signal else -math.inf


def _cosine(got: Any, want: Any) -> float:
    """Return the cosine of the angle between two arrays; two of zeros are alike."""
    sizes = [np.sqrt(np.sum(array**2)) for array in (got, want)]
    if not all(sizes):
        return 1.0 if not any(sizes) else 0.0
    cosine = float(np.sum(got * want) / (sizes[0] * sizes[1]))
    return cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine))
