"""The course of a run on an engine whose behaviour an emulator predicts."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.search.driver import Driver
from precision_bisect.trial import (
    Evidence,
    Honour,
    Kind,
    LayerHonour,
    Outcome,
    Phase,
    Proposal,
    TrialStatus,
)
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Evaluate, Simulated, by, driven, samples


def engine_course(
    path: Path, engine: Evaluate, emulator: Evaluate
) -> tuple[Ending, Driver, Simulated]:
    """Run the whole flow on an engine whose behaviour an emulator predicts."""
    backend = Simulated(engine)
    with driven(path, backend, emulator=Simulated(emulator)) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Guided(), Course()))
    return ending, driver, backend


def test_a_right_prediction_costs_one_build_beside_ends_and_certificate(tmp_path: Path) -> None:
    """Three builds of the preflight, the set predicted, every single drop, the final build."""
    rule = by(oracles.monotone([2, 3, 9]))
    ending, _, backend = engine_course(tmp_path, rule, rule)
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of((2, 3, 9)))
    assert 3 + 1 + 3 + 1 == len(backend.built)


def test_the_answer_is_built_afresh_timed_and_kept(tmp_path: Path) -> None:
    """The last build is of the answer again; all high and it are timed; its engine is saved."""
    rule = by(oracles.monotone([2, 3, 9]))
    ending, driver, backend = engine_course(tmp_path, rule, rule)
    assert ending.plan == backend.built[-1]
    assert ending.plan is not None
    assert ending.plan.key == (tmp_path / "engine").read_text()
    timed = [t.proposal.plan for t in driver.trials if t.outcome.evidence.latency]
    assert [Plan.all_high(SIZE), ending.plan] == timed
    assert {*timed} <= {*backend.afresh}


def test_an_engine_that_is_worse_than_predicted_tightens_the_limit(tmp_path: Path) -> None:
    """Errors twice as large on the engine: all-low tells, and the first choice passes."""
    errors = [0.3, 0.05, 0.3, 0.02, 0.3, 0.01, 0.3, 0.3, 0.01, 0.02, 0.3, 0.03]
    emulator = by(oracles.additive(errors))
    engine = by(oracles.additive([2 * error for error in errors]))
    ending, driver, _ = engine_course(tmp_path, engine, emulator)
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    (tmp_path / "own").mkdir()
    smallest = engine_course(tmp_path / "own", engine, engine)[0].plan
    assert smallest is not None
    assert len(smallest) == len(ending.plan)
    searched = [
        t
        for t in driver.trials
        if t.proposal.phase is Phase.SEARCH and t.proposal.kind is Kind.JUDGE
    ]
    assert searched[0].outcome.passed


@examples(25)
@given(
    culprits=st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=4),
    predicted=st.sets(st.integers(0, SIZE - 1), max_size=4),
)
def test_a_wrong_emulator_costs_builds_never_the_answer(
    culprits: set[int], predicted: set[int]
) -> None:
    """Whatever the emulator claims, the engine decides: exactly the culprits are kept."""
    with TemporaryDirectory() as folder:
        ending, _, _ = engine_course(
            Path(folder), by(oracles.monotone(culprits)), by(oracles.monotone(predicted))
        )
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of(culprits))


def test_a_build_that_does_not_obey_is_no_verdict(tmp_path: Path) -> None:
    """A demoted layer leaves the trial unresolved, with the layer named, whatever its outputs."""
    backend = Simulated(by(oracles.monotone([1])))
    entry = LayerHonour(layer="layer1", honoured=Honour.DEMOTED, evidence="its weights are half")
    backend.shown[Plan.of((1,))] = Evidence(honours=(entry,))
    with driven(tmp_path, backend) as driver:
        (outcome,) = driver.consider_all([Proposal(plan=Plan.of((1,)))])
    assert (TrialStatus.NOT_HONOURED, None, 0.0) == (
        outcome.status,
        outcome.verdict,
        outcome.error,
    )
    assert outcome.message == "the engine does not keep 'layer1': its weights are half"


def test_an_answer_that_fails_when_it_is_built_again_is_widened(tmp_path: Path) -> None:
    """What was found is no answer; a plan that keeps more and passes afresh is, and is saved."""
    rule = by(oracles.monotone([2, 3, 9]))
    backend: Simulated

    def changing(plan: Plan, feed: Sample) -> float:
        again = plan == Plan.of((2, 3, 9)) and backend.built.count(plan) > 1
        return 7.0 if again else rule(plan, feed)

    backend = Simulated(changing)
    with driven(tmp_path, backend, emulator=Simulated(rule)) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Guided(), Course(held_out=False)))
    assert Status.FOUND is ending.status and ending.plan is not None
    assert {2, 3, 9} < ending.plan.kept
    assert ending.plan.key == (tmp_path / "engine").read_text()


def test_other_samples_judge_a_fresh_build_too(tmp_path: Path) -> None:
    """What another sample refutes is widened, and the last build has passed on all others."""

    def rule(plan: Plan, feed: Sample) -> float:
        needed = {2, 5} if feed["x"][0] > 0 else {2}
        return 0.0 if needed <= plan.kept else float("inf")

    backend = Simulated(rule)
    sets = samples(2, pool=[0])
    with driven(tmp_path, backend, emulator=Simulated(rule), sets=sets) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Guided(), Course(pool=[0], others=True)))
    assert ending.plan is not None
    assert (Status.FOUND, True) == (ending.status, {2, 5} <= ending.plan.kept)
    assert ending.plan == backend.built[-1]
    assert ending.plan.key == (tmp_path / "engine").read_text()


@pytest.mark.parametrize("held_out", [0, 1])
def test_a_fresh_build_without_a_verdict_is_not_called_a_difference(
    tmp_path: Path, held_out: int
) -> None:
    """A re-check that ran out of time says so, not that outputs differ or samples refute."""
    rule = by(oracles.monotone([2, 3, 9]))
    late = Outcome(status=TrialStatus.TIMED_OUT, message="not built within 5 s")
    backend: Simulated

    def slow(plan: Plan, feed: Sample) -> float:
        if plan == Plan.of((2, 3, 9)) and backend.built.count(plan) > 1:
            raise BackendFailure(late)
        return rule(plan, feed)

    backend = Simulated(slow)
    with driven(tmp_path, backend, emulator=Simulated(rule), held_out=held_out) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Guided(), Course(held_out=bool(held_out))))
    assert "not built within 5 s" in ending.message
    assert "builds differ" not in ending.message
    assert "failed on the samples" not in ending.message


def test_a_latency_that_cannot_be_measured_costs_only_its_figure(tmp_path: Path) -> None:
    """The verdict stands, and a note says why there is no figure."""
    backend = Simulated(by(oracles.monotone([1])))
    backend.clockless = True
    with driven(tmp_path, backend) as driver:
        (outcome,) = driver.consider_all([Proposal(plan=Plan.of((1,)), timed=True)])
    assert outcome.passed
    assert outcome.evidence.latency is None
    assert ("the latency could not be measured: no clock",) == outcome.evidence.notes
