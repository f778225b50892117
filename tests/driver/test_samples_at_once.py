"""Samples that the emulator computes side by side."""

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from patience import PATIENCE_S
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.machine.threads import samples_at_once, usable
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.trial import Proposal, Verdict
from simulated import Simulated, SimulatedEngine, samples


class Emulator(Simulated):
    """Outputs by a rule, as a prediction."""

    emulated = True


def evaluator(backend: Simulated, count: int, side_by_side: int) -> Evaluator:
    """Return one over so many samples, numbered, with a reference of zero."""
    return Evaluator(
        backend=backend,
        emulator=backend,
        comparator=PolygraphyComparator(
            metric="max",
            atol=Tolerance(default=1e-3),
            rtol=Tolerance(default=0.0),
            outputs=("y",),
        ),
        samples=samples(count),
        keep=Path(),
        at_once=side_by_side,
    )


@pytest.mark.parametrize("count", [1, 2, 7])
def test_outcomes_do_not_depend_on_it(count: int, tmp_path: Path) -> None:
    """Whatever is computed side by side, plans come to the same errors and verdicts."""
    options = Options(
        model=tiny.write_model(tmp_path / "tiny.onnx"), inputs=tiny.samples(count), tol=1e-2
    )
    prepared = prepare(options, ignore, tmp_path)
    assert prepared.here is not None
    serial = Evaluator(
        backend=prepared.here,
        emulator=prepared.here,
        comparator=prepared.case.comparator,
        samples=prepared.case.sets,
        keep=tmp_path,
    )
    rng = random.Random(count)
    plans = [Plan.of(rng.sample(range(20), rng.choice((4, 12, 19)))) for _ in range(12)]
    plans = [Plan.of(()), Plan.all_high(20), *plans]
    found = [
        [evaluate(Proposal(plan=plan)) for plan in plans]
        for evaluate in (serial, replace(serial, at_once=3))
    ]
    assert found[0] == found[1]
    assert {Verdict.PASS, Verdict.FAIL} == {outcome.verdict for outcome in found[0]}


class InTwoWays(Emulator):
    """Engines that compute in two ways, the second of which is wrong by `off`."""

    off = 0.0

    def build(self, plan: Plan, *, afresh: bool = False) -> SimulatedEngine:
        """Build the plan."""
        engine = SimulatedEngine(self, plan)
        other = SimulatedEngine(Emulator(lambda plan, feed: self.off), plan)
        engine.ways = [engine, other]  # type: ignore[attr-defined]
        return engine


@pytest.mark.parametrize("errors", [(0.0, 0.5), (0.5, 0.0), (0.5, 0.25), (1e-4, 2e-4)])
def test_a_plan_passes_only_in_every_way(errors: tuple[float, float]) -> None:
    """The largest error of all ways is told, and decides."""
    backend = InTwoWays(lambda plan, feed: errors[0])
    backend.off = errors[1]
    outcome = evaluator(backend, 1, 1)(Proposal(plan=Plan.of(())))
    assert max(errors) == outcome.error
    assert outcome.passed is (max(errors) <= 1e-3)


def test_little_is_computed_after_a_sample_that_is_not_finite() -> None:
    """With four side by side no more than the wave that overflowed is computed."""
    seen = []

    def overflows(plan: Plan, feed: Sample) -> float:
        seen.append(int(feed["x"][0]))
        return float("inf") if feed["x"][0] == 1 else 0.0

    outcome = evaluator(Emulator(overflows), 12, 4)(Proposal(plan=Plan.of(())))
    assert (Verdict.FAIL, float("inf")) == (outcome.verdict, outcome.error)
    assert {0, 1} <= {*seen} <= {0, 1, 2, 3}


@pytest.mark.parametrize("emulated", [False, True])
def test_engines_run_one_sample_at_a_time(emulated: bool) -> None:
    """Only an emulator meets its samples side by side; an engine is not asked by several."""
    meeting = threading.Barrier(2)
    met = []

    def meets(plan: Plan, feed: Sample) -> float:
        try:
            met.append(meeting.wait(timeout=PATIENCE_S if emulated else 0.05) >= 0)
        except threading.BrokenBarrierError:
            met.append(False)
        return 0.0

    backend = Emulator(meets) if emulated else Simulated(meets)
    evaluator(backend, 2, 2)(Proposal(plan=Plan.of(())))
    assert [emulated, emulated] == met


def test_it_brings_in_the_cores_that_threads_leave() -> None:
    """Short inferences stay in one thread; long ones share the cores that are of use."""
    assert 1 == samples_at_once(1e-5, 1)
    assert usable() == samples_at_once(0.1, 1)
    assert 1 == samples_at_once(0.1, usable())
