"""Latencies are medians over enough runs, and measuring ends."""

import time

import pytest

from precision_bisect.backends import timing
from precision_bisect.backends.timing import measured_latency


def test_the_median_is_in_milliseconds() -> None:
    """A run that sleeps 2 ms takes a little more than 2 ms, over many runs."""
    measured = measured_latency(lambda: time.sleep(0.002))
    assert measured.runs > timing.LEAST_RUNS
    assert 2.0 <= measured.median_ms < 20.0
    assert 0.0 <= measured.spread_ms < 20.0


def test_slow_runs_are_few_but_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is over at once, as many runs are made as a spread needs."""
    monkeypatch.setattr(timing, "TIME_S", 0.0)
    assert timing.LEAST_RUNS == measured_latency(lambda: None).runs


def test_no_measurement_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the cap a single run must do."""
    monkeypatch.setattr(timing, "LONGEST_S", 0.0)
    assert 1 == measured_latency(lambda: None).runs


def test_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs, in which kernels are compiled, are not timed."""
    monkeypatch.setattr(timing, "WARM_UP_S", 0.0)
    runs = []

    def run() -> None:
        runs.append(1)
        time.sleep(0.05 if len(runs) <= timing.WARM_UP_RUNS else 0.0)

    measured = measured_latency(run)
    assert measured.runs + timing.WARM_UP_RUNS == len(runs)
    assert measured.median_ms < 5.0
