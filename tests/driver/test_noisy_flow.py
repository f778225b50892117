"""The course of a run on an engine whose builds of one plan differ."""

from dataclasses import replace
from pathlib import Path

import pytest

import oracles
from oracles import outcome
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample, Search
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.search.driver import Driver
from precision_bisect.search.limits_and_noise import judged_within, repeated
from precision_bisect.trial import Kind, Outcome, Proposal, SampleSet
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Evaluate, Simulated, by, driven

EVERYTHING = Plan.all_high(SIZE)
ANSWER = Plan.of((2, 3, 9))


def noisy_course(
    path: Path, rule: Evaluate, builds: dict[Plan, list[float]]
) -> tuple[Ending, Driver]:
    """Run the whole flow on an engine; `builds` has the errors of some plans, build by build.

    The last one stands for all further builds. The emulator goes by the rule alone.
    """
    backend: Simulated

    def evaluate(plan: Plan, feed: Sample) -> float:
        if plan not in builds:
            return rule(plan, feed)
        return builds[plan][: backend.built.count(plan)][-1]

    backend = Simulated(evaluate)
    with driven(path, backend, emulator=Simulated(rule)) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Guided(), Course()))
    return ending, driver


def test_an_answer_repeated_within_the_noise_is_still_built_afresh(tmp_path: Path) -> None:
    """A second verdict in the search is not taken for the re-check: that one is timed and kept."""
    rule = by(oracles.monotone(ANSWER.kept))
    ending, driver = noisy_course(tmp_path, rule, {EVERYTHING: [0.0, 0.6], ANSWER: [0.7]})
    again, afresh = (
        driver.outcome_of(ANSWER, SampleSet.JUDGED, kind) for kind in (Kind.AGAIN, Kind.REBUILD)
    )
    assert (Status.FOUND, ANSWER) == (ending.status, ending.plan)
    assert again is not None and again.passed
    assert afresh is not None and afresh.evidence.latency is not None
    assert ANSWER.key == (tmp_path / "engine").read_text()


def test_all_low_that_fails_afresh_is_widened(tmp_path: Path) -> None:
    """Two builds of all-low on either side of the tolerance: layers join until a plan holds."""
    rule = by(oracles.additive([0.075] * SIZE))
    ending, driver = noisy_course(tmp_path, rule, {Plan.of(()): [0.9, 1.2]})
    assert Status.FOUND is ending.status and ending.plan is not None
    assert 3 <= len(ending.plan) <= 8
    assert (
        "",
        "the answer was widened, since the plan with all layers low failed when it was "
        "built afresh",
    ) == (
        ending.message,
        ending.spread,
    )
    outcome = driver.outcome_of(ending.plan, SampleSet.JUDGED, Kind.REBUILD)
    assert outcome is not None and outcome.passed


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(0.95, 1.2, 1.2), (0.95, 0.97, 0.97), (0.97, 0.93, 0.97)]
)
def test_of_two_builds_the_worse_one_is_told(first: float, second: float, expected: float) -> None:
    """A pass near the tolerance is built once more; neither may pass better than the other."""
    told: list[Outcome] = []

    def asked() -> Search[None]:
        told.extend((yield (Proposal(plan=ANSWER), Proposal(plan=Plan.of(())))))

    problem = replace(oracles.problem(SIZE), noise=0.1)
    search = repeated(asked(), problem)
    assert [ANSWER, Plan.of(())] == [each.plan for each in next(search)]
    (again,) = search.send((outcome(first), outcome(0.2)))
    assert (ANSWER, Kind.AGAIN) == (again.plan, again.kind)
    with pytest.raises(StopIteration):
        search.send((outcome(second),))
    assert [outcome(expected), outcome(0.2)] == told


@pytest.mark.parametrize("error", [0.25, oracles.TOLERANCE, 3.0])
def test_an_error_at_a_limit_is_within_it(error: float) -> None:
    """As every comparator judges by the tolerance; any larger one is beyond."""
    judged = outcome(error)
    assert judged is judged_within(judged, oracles.TOLERANCE)
    assert judged_within(judged, error).passed
    assert judged_within(judged, 0.99 * error).failed
