"""The arithmetic of Polygraphy's metrics: for a run's verdicts, and for those on the target.

Differences divide by the reference, which is Polygraphy's second runner; for PSNR and SNR it is
the signal, the first. Polygraphy itself spends milliseconds per output on statistics for its log.
numpy alone and Python 3.8: `run_onnxruntime.py` takes these definitions along.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# What stands for a reference of zero in relative errors, as in Polygraphy.
_EPSILON = 2.220446049250313e-16
# Integers below this in magnitude can be subtracted in 64 bits.
_SAFE = 2**62
_ABOVE = 1.0 + 2.0**-52


class CannotJudge(Exception):
    """The model cannot be judged here; the message says why, in one sentence."""


def multiple(limits: dict[str, Any], atol: float, rtol: float, got: Any, want: Any) -> float:
    """Return the error of an array as a multiple of its limits, 1 at the most where it passes.

    `limits` name the `metric`, and the `quantile`.
    """
    # What is not there or not finite is past every limit.
    if got.shape != want.shape or (got.dtype.kind == "f" and not np.isfinite(got).all()):
        return math.inf
    if not want.size:
        return 0.0
    if limits["metric"] not in METRICS:
        raise CannotJudge(f"the metric {limits['metric']!r} is not known here")
    metric = METRICS[limits["metric"]]
    got, want = widened(got, want, as_float=not metric.has_relative)
    if not metric.has_relative:
        return float(metric.error(got, want, atol))
    absolute = np.abs(got - want)
    is_float = want.dtype.kind == "f"
    # As Polygraphy does, so that its verdict on an export is the same.
    divisor = np.where(want == 0, want.dtype.type(_EPSILON), want) if is_float else want
    statistics = (metric.error(part, limits) for part in (absolute, absolute / np.abs(divisor)))
    return float(np.fmin(*map(_over, statistics, (atol, rtol))).max())


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


def _l2(got: Any, want: Any, limit: float) -> Any:
    """Return the L2 norm of the differences as a multiple of the limit."""
    return _over(float(np.sqrt(np.sum((got - want) ** 2))), limit)


def _cosine(got: Any, want: Any, limit: float) -> Any:
    """Return 1 - cosine of two arrays as a multiple of the limit; two of zeros are alike."""
    sizes = [np.sqrt(np.sum(array**2)) for array in (got, want)]
    if all(sizes):
        cosine = float(np.sum(got * want) / (sizes[0] * sizes[1]))
        cosine = cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine))
    else:
        cosine = 0.0 if any(sizes) else 1.0
    return _agreed((1.0 - cosine) / limit, cosine >= 1.0 - limit)


def _psnr(got: Any, want: Any, limit: float) -> Any:
    noise, peak = float(np.mean((want - got) ** 2)), float(want.max())
    peak_db = 20 * math.log10(peak if peak > 0 else 1.0)
    return _below(peak_db - 10 * math.log10(noise) if noise else math.inf, limit)


def _snr(got: Any, want: Any, limit: float) -> Any:
    noise, signal = np.mean((want - got) ** 2), np.mean(want**2)
    if not noise or not signal:
        return _below(-math.inf if noise else math.inf, limit)
    return _below(10 * math.log10(float(signal / noise)), limit)


def _below(decibels: float, limit: float) -> Any:
    """Return the ratio of amplitudes by which a figure misses the least number of decibels."""
    return _agreed(10.0 ** min((limit - decibels) / 20.0, 300.0), decibels >= limit)


class Metric(NamedTuple):
    """A metric, and what `polygraphy run` calls it.

    Where it `has_relative` limits beside absolute ones, `error` is a statistic of the errors of an
    array, by those and the run's limits. Else it takes both arrays, flat, and the limit, and gives
    a multiple of that. `called` is Polygraphy's name of the statistic or comparison, "" for its
    default, None where Polygraphy has none.
    """

    error: Callable[..., Any]
    called: str | None = None
    has_relative: bool = False


METRICS: dict[str, Metric] = {
    "elementwise": Metric(lambda errors, _: errors, "", has_relative=True),
    "max": Metric(lambda errors, _: errors.max(), "max", has_relative=True),
    "mean": Metric(lambda errors, _: errors.mean(dtype=np.float32), "mean", has_relative=True),
    "quantile": Metric(
        lambda errors, limits: np.quantile(errors, limits["quantile"]), "quantile", True
    ),
    "l2": Metric(_l2, "l2"),
    "cosine": Metric(_cosine, "cosine_similarity"),
    "psnr": Metric(_psnr, "psnr"),
    "snr": Metric(_snr, "snr"),
}
