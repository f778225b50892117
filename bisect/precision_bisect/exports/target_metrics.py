"""The comparators' arithmetic for `run_onnxruntime.py`, which needs numpy alone.

It is written into that script, which a target runs without this package.
"""

import math
from typing import Any

import numpy as np

EPSILON = 2.220446049250313e-16
"""What stands for a reference of zero in relative errors, as in Polygraphy."""


class CannotJudge(Exception):
    """The model cannot be judged here; the message says why, in one sentence."""


def multiple(limits: dict[str, Any], atol: float, rtol: float, got: Any, want: Any) -> float:
    """Return the error of one array as a multiple of its limits, 1 at the most where it passes."""
    if got.shape != want.shape or (got.dtype.kind == "f" and not np.isfinite(got).all()):
        return math.inf
    if not want.size:
        return 0.0
    metric = limits["metric"]
    if metric in ("elementwise", "max", "mean", "quantile"):
        got, want = widened(got, want, as_float=False)
        absolute = np.abs(got - want)
        is_float = want.dtype.kind == "f"
        divisor = np.where(want == 0, want.dtype.type(EPSILON), want) if is_float else want
        relative = absolute / np.abs(divisor)
        if metric == "elementwise":
            return float(np.fmin(over(absolute, atol), over(relative, rtol)).max())
        figures = [statistic(limits, errors) for errors in (absolute, relative)]
        return float(np.fmin(over(figures[0], atol), over(figures[1], rtol)))
    got, want = widened(got, want, as_float=True)
    if metric in ("psnr", "snr"):
        return float(10.0 ** min((atol - decibels(metric, got, want)) / 20.0, 300.0))
    if metric == "l2":
        return float(np.linalg.norm(got - want) / atol)
    if metric == "cosine":
        return (1.0 - cosine(got, want)) / atol
    raise CannotJudge(f"the metric {metric!r} is not known here")


def widened(got: Any, want: Any, *, as_float: bool) -> tuple[Any, Any]:
    """Return both arrays flat, in a type whose differences cannot wrap around."""
    got, want = got.ravel(), want.ravel()
    if want.dtype.kind == "f":
        kind = np.float32 if want.itemsize < 4 else want.dtype
        return got.astype(kind), want.astype(kind)
    kind = np.float64 if as_float or want.itemsize == 8 else np.int64
    return got.astype(kind), want.astype(kind)


def over(error: Any, limit: float) -> Any:
    """Return errors as multiples of a limit; without one, anything but zero is infinite."""
    wide = np.asarray(error, np.float64)
    return wide / limit if limit else np.where(wide > 0, np.inf, wide)


def statistic(limits: dict[str, Any], errors: Any) -> float:
    """Return the statistic of the errors that the metric is about."""
    if limits["metric"] == "quantile":
        return float(np.quantile(errors, limits["quantile"]))
    return float(errors.max() if limits["metric"] == "max" else errors.mean())


def decibels(metric: str, got: Any, want: Any) -> float:
    """Return the ratio of the reference to the noise in decibels."""
    noise = float(np.mean((want - got) ** 2))
    if noise == 0:
        return math.inf
    if metric == "psnr":
        peak = float(want.max())
        return 20 * math.log10(peak if peak > 0 else 1.0) - 10 * math.log10(noise)
    signal = float(np.mean(want**2))
    return 10 * math.log10(signal / noise) if signal else -math.inf


def cosine(got: Any, want: Any) -> float:
    """Return the cosine of the angle between two arrays; two of zeros are alike."""
    sizes = [float(np.linalg.norm(array)) for array in (got, want)]
    if not all(sizes):
        return 1.0 if not any(sizes) else 0.0
    return max(-1.0, min(1.0, float(got @ want) / (sizes[0] * sizes[1])))
