"""The curve in the course of a run on an engine: one build a point, on few copies."""

import math
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import oracles
from precision_bisect.options import Until
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Sample, Search
from precision_bisect.runs.results.endings import Status
from precision_bisect.search.evaluation import CURVE_COPIES
from precision_bisect.search.precision_curve import CURVE_DRAW
from precision_bisect.trial import Kind, Phase, Proposal
from simulated import SIZE, Simulated, copies_of, driven

ERRORS = [40.0, 30.0, 0.5, 0.45, 0.4, 0.4, 0.35, 0.35, 0.3, 0.3, 0.25, 0.25]


class Passing:
    """Takes the plan that is known to pass."""

    name: ClassVar[str] = "passing"
    assumption: ClassVar[str] = "none"
    minimal: ClassVar[bool] = False
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Ask for it once more, on the samples."""
        plan = problem.passing or Plan.all_high(problem.size)
        yield (Proposal(plan=plan),)
        return plan


def rule(plan: Plan, feed: Sample) -> float:
    """Add up what runs low as independent errors; the copies agree."""
    del feed
    return math.hypot(*(ERRORS[i] for i in range(SIZE) if i not in plan.kept))


def test_a_strategy_is_given_a_plan_that_passes(tmp_path: Path) -> None:
    """Each point is one build, judged on four copies at the most, and the passing one is given."""
    backend = Simulated(rule)
    with driven(tmp_path, backend, copies=copies_of) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Passing(), Course(copies=True, curve=True)))
    points = [
        trial
        for trial in driver.trials
        if trial.proposal.phase is Phase.CURVE and trial.proposal.kind is Kind.JUDGE
    ]
    assert {CURVE_DRAW} == {trial.proposal.draw for trial in points}
    assert Plan.of((0, 1)) == points[0].proposal.plan
    passed = [trial.proposal.plan for trial in points if trial.outcome.passed]
    assert (Status.FOUND, passed) == (ending.status, [ending.plan])
    for trial in points:
        stability = trial.outcome.evidence.stability
        assert stability is not None
        assert stability.copies == (CURVE_COPIES if trial.outcome.passed else CURVE_COPIES // 2)
        assert trial.outcome.evidence.latency is None


@pytest.mark.parametrize("until", ["culprits", "curve"])
def test_a_run_may_end_before_the_search(tmp_path: Path, until: Until) -> None:
    """The culprits do not suffice here; for the curve alone there is no plan."""
    with driven(tmp_path, Simulated(rule), copies=copies_of) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Passing(), Course(copies=True, until=until)))
    assert Status.STOPPED is ending.status
    assert ending.plan == (Plan.of((0, 1)) if until == "culprits" else None)
    phases = {trial.proposal.phase for trial in driver.trials}
    assert Phase.SEARCH not in phases
