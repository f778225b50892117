"""How long one inference takes, by the host's clock around runs that wait for their result."""

import time
from collections.abc import Callable

import numpy as np

from precision_bisect.evidence import Latency

WARM_UP_RUNS = 3
WARM_UP_S = 0.02
LEAST_RUNS = 10
TIME_S = 0.1
"""Timed runs go on for so long, and for `LEAST_RUNS` at least: the driver times in short turns."""
LONGEST_S = 4.0
"""No measurement takes longer, however few runs that allows."""


def measure(run: Callable[[], None]) -> Latency:
    """Return the latency of `run`, which must wait for its result. Raises what it raises."""
    _runs(run, WARM_UP_RUNS, WARM_UP_S)
    seconds = np.array(_runs(run, LEAST_RUNS, TIME_S))
    low, median, high = np.percentile(seconds * 1e3, (25, 50, 75))
    return Latency(median_ms=float(median), spread_ms=float(high - low), runs=len(seconds))


def _runs(run: Callable[[], None], least: int, lasting_s: float) -> list[float]:
    """Run for so many seconds, and so often at least; return the seconds of each run."""
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < least or time.perf_counter() < begun + lasting_s:
        started = time.perf_counter_ns()
        run()
        seconds.append((time.perf_counter_ns() - started) / 1e9)
        if time.perf_counter() - begun > LONGEST_S:
            break
    return seconds
