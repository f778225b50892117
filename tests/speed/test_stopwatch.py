"""Timing beside all-high: drift cancels, the baseline is built once and always let go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import oracles
from paced import Clock, chain
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import Pace
from precision_bisect.protocols import BackendFailure, Engine
from precision_bisect.search.driver import Driver
from precision_bisect.search.stopwatch import TURNS, Stopwatch
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus
from simulated import SIZE, Simulated, by, driven

GRAPH = chain([0.2] * SIZE)
EVERYTHING = Plan.all_high(SIZE)
SLOW, FAST = Plan.of(range(6)), Plan.of((0,))


def backend(**clock: float) -> Simulated:
    """Return a backend that always passes, with a clock of these properties."""
    made = Simulated(by(oracles.monotone([])))
    made.clock = Clock(GRAPH, **clock)
    return made


@contextmanager
def timing(
    path: Path,
    engine: Simulated,
    baseline: Plan | None = EVERYTHING,
    build: Callable[[Plan], Engine] | None = None,
) -> Iterator[Driver]:
    """Give a driver that times engines beside the baseline, which something else may build."""
    with (
        Stopwatch(build or engine.build, baseline) as stopwatch,
        driven(path, engine, stopwatch=stopwatch) as driver,
    ):
        yield driver


def pace(path: Path, engine: Simulated, plan: Plan, baseline: Plan | None = EVERYTHING) -> Pace:
    """Return the pace of a plan, against an all-high latency measured before."""
    with timing(path, engine, baseline) as driver:
        high = driver.consider_all([Proposal(plan=EVERYTHING, timed=True)])[0].evidence.latency
        latency = driver.consider_all([Proposal(plan=plan, timed=True)])[0].evidence.latency
    assert high is not None
    found = Pace.of(latency, high.median_ms)
    assert found is not None
    return found


def test_a_drifting_clock_does_not_decide(tmp_path: Path) -> None:
    """A clock that gets 4% slower with every reading makes a faster plan look slower, if alone."""
    truth = Clock(GRAPH).speedup(FAST)
    assert truth > 1.5
    (tmp_path / "alone").mkdir()
    assert pace(tmp_path / "alone", backend(drift=0.04), FAST, None).speedup < truth * 0.85
    assert truth == pytest.approx(pace(tmp_path, backend(drift=0.04), FAST).speedup, rel=0.01)


def test_noise_shows_as_spread(tmp_path: Path) -> None:
    """The figure of a noisy clock is right within a few of its spreads, which are not zero."""
    found = pace(tmp_path, backend(noise=0.03), SLOW)
    assert 0 < found.spread < 0.3
    assert abs(found.speedup - Clock(GRAPH).speedup(SLOW)) < 3 * found.spread


def test_the_baseline_is_as_fast_as_itself(tmp_path: Path) -> None:
    """The all-high plan is not compared with another build of itself."""
    found = pace(tmp_path, backend(noise=0.1), EVERYTHING)
    assert (1.0, 0.0) == (found.speedup, found.spread)


def test_the_first_all_high_engine_stays_open(tmp_path: Path) -> None:
    """The preflight's engine serves all timings: nothing is built for them, and it is let go."""
    engine = backend()
    with timing(tmp_path, engine) as driver:
        for plan in (EVERYTHING, SLOW, FAST):
            driver.consider_all([Proposal(plan=plan, timed=True)])
        assert 1 == engine.open
    assert [EVERYTHING, SLOW, FAST] == engine.built
    assert 0 == engine.open


def test_a_resumed_run_builds_the_baseline_once_more(tmp_path: Path) -> None:
    """Where the all-high trial comes from the ledger, its engine is built for the first timing."""
    engine = backend()
    for plan in (EVERYTHING, SLOW):
        engine.built.clear()
        with timing(tmp_path, engine) as driver:
            driver.consider_all([Proposal(plan=EVERYTHING, timed=True)])
            driver.consider_all([Proposal(plan=plan, timed=True)])
    assert [SLOW, EVERYTHING] == engine.built
    assert 0 == engine.open


def test_the_baseline_is_let_go_on_an_error(tmp_path: Path) -> None:
    """An exception that ends the run leaves no engine open."""
    engine = backend()
    with pytest.raises(KeyboardInterrupt), timing(tmp_path, engine) as driver:
        driver.consider_all([Proposal(plan=EVERYTHING, timed=True)])
        raise KeyboardInterrupt
    assert 0 == engine.open


def test_beside_a_baseline_that_cannot_be_built_engines_are_timed_alone(tmp_path: Path) -> None:
    """There may be no memory for both. The verdict of the trial stands."""
    engine = backend()

    def refuse(plan: Plan) -> Engine:
        raise BackendFailure(Outcome(status=TrialStatus.BUILD_FAILED, message=f"no {plan.key}"))

    with timing(tmp_path, engine, build=refuse) as driver:
        (outcome,) = driver.consider_all([Proposal(plan=FAST, timed=True)])
    latency = outcome.evidence.latency
    assert outcome.passed
    assert latency is not None
    assert (None, None) == (latency.speedup, latency.baseline_ms)


def test_latencies_come_back_from_the_ledger_as_they_were(tmp_path: Path) -> None:
    """What was measured beside the baseline survives a restart."""
    engine = backend(noise=0.05)
    with timing(tmp_path, engine) as driver:
        first = driver.consider_all([Proposal(plan=SLOW, timed=True)])[0].evidence.latency
    with driven(tmp_path, engine) as driver:
        assert first == driver.consider_all([Proposal(plan=SLOW)])[0].evidence.latency
    assert first is not None
    assert TURNS == first.runs


def test_a_repeat_is_not_taken_for_the_baseline(tmp_path: Path) -> None:
    """Only an engine that is timed is kept open, so untimed runs hold no memory."""
    engine = backend()
    with timing(tmp_path, engine) as driver:
        driver.consider_all([Proposal(plan=EVERYTHING)])
        driver.consider_all([Proposal(plan=EVERYTHING, kind=Kind.REPEAT)])
        assert 0 == engine.open
