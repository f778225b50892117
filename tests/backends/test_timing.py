"""Latencies are medians over enough runs, and measuring ends; nothing but runs takes time."""

import itertools

import pytest

from precision_bisect.backends import timing
from precision_bisect.backends.timing import measured_latency


class Clock:
    """The clock of the module `time`, in the place of which it stands."""

    def __init__(self) -> None:
        self.ns = 0

    def perf_counter_ns(self) -> int:
        """Return nanoseconds."""
        return self.ns

    def perf_counter(self) -> float:
        """Return seconds."""
        return self.ns / 1e9

    def sleep(self, milliseconds: int) -> None:
        """Let time go by."""
        self.ns += milliseconds * 10**6


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have timing look at a clock that stands still."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_the_median_is_in_milliseconds(clock: Clock) -> None:
    """Of runs of 2 ms and of 4 ms, as many as the time allows."""
    milliseconds = itertools.cycle((2, 4, 2))
    measured = measured_latency(lambda: clock.sleep(next(milliseconds)))
    assert measured.runs > timing.LEAST_RUNS
    assert (2.0, 2.0) == (measured.median_ms, measured.spread_ms)


def test_slow_runs_are_few_but_enough(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is over at once, as many runs are made as a spread needs."""
    monkeypatch.setattr(timing, "TIME_S", 0.0)
    assert timing.LEAST_RUNS == measured_latency(lambda: clock.sleep(1)).runs


def test_no_measurement_takes_for_ever(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the cap a single run must do."""
    monkeypatch.setattr(timing, "LONGEST_S", 0.0)
    assert 1 == measured_latency(lambda: clock.sleep(1)).runs


def test_the_warm_up_does_not_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs, in which kernels are compiled, are not timed."""
    monkeypatch.setattr(timing, "WARM_UP_S", 0.0)
    runs = []

    def run() -> None:
        runs.append(1)
        clock.sleep(50 if len(runs) <= timing.WARM_UP_RUNS else 1)

    measured = measured_latency(run)
    assert measured.runs + timing.WARM_UP_RUNS == len(runs)
    assert 1.0 == measured.median_ms
