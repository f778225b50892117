"""How long one launch on a CUDA stream takes: by CUDA events, or by the host's clock.

Events lie on the stream around the launch, so their time is the device's, with the gaps between
kernels that a slow host leaves. The host's clock starts before the launch and stops once the host
has seen its end, some microseconds later. Events need PyCUDA: Polygraphy's streams have none.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from precision_bisect.trial import LatencyMethod


class LaunchError(Exception):
    """A launch that was not started, or did not end well."""


class Launches(Protocol):
    """Times launches on its stream, whose address is `stream`."""

    method: LatencyMethod
    stream: int

    def seconds(self, launch: Callable[[], None]) -> float:
        """Launch, wait for the end, and return how long that took. Raises what `launch` does."""
        ...


@contextmanager
def launches(own: Any) -> Iterator[Launches]:
    """Yield what times launches: PyCUDA's events, else the host on Polygraphy's `own` stream."""
    context = None
    # PyCUDA may be missing, or for another CUDA: what it raises shares no base but Exception.
    with suppress(Exception):
        from pycuda import driver

        driver.init()
        # The primary context is the one that TensorRT and Polygraphy use as well.
        context = driver.Device(0).retain_primary_context()
    if context is None:
        yield _ByHost(own)
        return
    context.push()
    try:
        yield _ByEvents(driver)
    finally:
        context.pop()


class _ByHost:
    method: LatencyMethod = "host_clock"

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.stream: int = stream.ptr

    def seconds(self, launch: Callable[[], None]) -> float:
        begun = time.perf_counter_ns()
        launch()
        self._stream.synchronize()
        return (time.perf_counter_ns() - begun) / 1e9


class _ByEvents:
    method: LatencyMethod = "cuda_events"

    def __init__(self, driver: Any) -> None:
        self._failed = driver.Error
        self._stream = driver.Stream()
        self._begin, self._end = driver.Event(), driver.Event()
        self.stream: int = self._stream.handle

    def seconds(self, launch: Callable[[], None]) -> float:
        try:
            self._begin.record(self._stream)
            launch()
            self._end.record(self._stream)
            self._end.synchronize()
            return float(self._end.time_since(self._begin)) / 1e3
        except self._failed as error:
            raise LaunchError(f"CUDA: {error}") from error
