"""How long one inference, or launch on a stream, takes: the median of many after a warm-up."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.trial import Latency, LatencyMethod

WARM_UP_RUNS = 1
"""Untimed runs before a measurement, at least: the first one loads kernels."""
WARM_UP_S = 0.02
"""Seconds of untimed runs, at least: clocks rise under load. A limit on what timing costs."""
LEAST_RUNS = 3
"""Timed runs, at least: turns are timed several times, and one run may take seconds. The fewest
whose median ignores one."""
TIME_S = 0.05
"""Seconds that timed runs go on for: short, as the driver times in turns: some
12 turns for an engine take 0.8 s."""
LONGEST_S = 4.0
"""Seconds that a measurement takes at most, however few runs that allows. A bound."""


def measured_latency(run: Callable[[], None], method: LatencyMethod = "host_clock") -> Latency:
    """Return the latency of `run`, which must wait for its result. Raises what it raises.

    The host's clock times it; the `method` says what it launches.
    """

    def timed() -> float:
        begun = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - begun) / 1e9

    return measure_by(timed, method)


def measure_by(timed: Callable[[], float], method: LatencyMethod) -> Latency:
    """Return the latency of runs, each of which returns its own seconds by the method named."""
    _runs(timed, WARM_UP_RUNS, WARM_UP_S)
    return latency_of(np.array(_runs(timed, LEAST_RUNS, TIME_S)) * 1e3, method)


def latency_of(milliseconds: Sequence[float] | NDArray[Any], method: LatencyMethod) -> Latency:
    """Return the latency that at least one run took, each so long."""
    low, median, high = map(float, np.percentile(milliseconds, (25, 50, 75)))
    return Latency(median_ms=median, spread_ms=high - low, runs=len(milliseconds), method=method)


def middle(runs: Sequence[float]) -> float:
    """Return the mean of the middle half: for figures that are too coarse for a median."""
    aside = len(runs) // 4
    return float(np.sort(np.asarray(runs))[aside : len(runs) - aside].mean())


def _runs(timed: Callable[[], float], least: int, lasting_s: float) -> list[float]:
    """Run for so many seconds, and so often at least; return the seconds of each run."""
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < least or time.perf_counter() < begun + lasting_s:
        seconds.append(timed())
        if time.perf_counter() - begun > LONGEST_S:
            break
    return seconds


class LaunchError(Exception):
    """A launch that was not started, or did not end well."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Times launches on its stream, whose address is `stream`.

    `seconds` launches, waits for the end, and returns how long that took. It raises what the
    launch does.
    """

    method: LatencyMethod
    stream: int
    seconds: Callable[[Callable[[], None]], float]


@contextmanager
def launches(own: Any) -> Iterator[Launches]:
    """Yield what times launches: PyCUDA's events, else the host on Polygraphy's `own` stream.

    Events lie on the stream around the launch, so their time is the device's, with the gaps
    between kernels that a slow host leaves. The host's clock starts before the launch and stops
    once the host has seen its end, some microseconds later. Polygraphy's streams have no events.
    """
    context = None
    # PyCUDA may be missing, or for another CUDA: what it raises shares no base but Exception.
    with suppress(Exception):
        from pycuda import driver

        driver.init()
        # The primary context is the one that TensorRT and Polygraphy use as well.
        context = driver.Device(0).retain_primary_context()
    if context is None:
        yield Launches("host_clock", own.ptr, partial(_by_host, own))
        return
    context.push()
    try:
        stream, begin, end = driver.Stream(), driver.Event(), driver.Event()
        timed = partial(_by_events, stream, begin, end, driver.Error)
        yield Launches("cuda_events", stream.handle, timed)
    finally:
        context.pop()


def _by_host(stream: Any, launch: Callable[[], None]) -> float:
    begun = time.perf_counter_ns()
    launch()
    stream.synchronize()
    return (time.perf_counter_ns() - begun) / 1e9


def _by_events(
    stream: Any, begin: Any, end: Any, failed: type[Exception], launch: Callable[[], None]
) -> float:
    try:
        begin.record(stream)
        launch()
        end.record(stream)
        end.synchronize()
        return float(end.time_since(begin)) / 1e3
    except failed as error:
        raise LaunchError(f"CUDA: {error}") from error
