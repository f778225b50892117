"""An answer is never worse than another plan of its own curve, if that holds."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oracles
from precision_bisect.options import Certify
from precision_bisect.pipeline.best_known import Standing, best_known
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.endings import NO_SEARCH, Ending, Status
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.curve_points import complete
from precision_bisect.search.driver import Driver
from precision_bisect.search.precision_curve import Curve, sweep
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet
from simulated import SIZE, Evaluate, Simulated, copies_of, driven, driver_of

ERRORS = [5.0, 3.0, 2.0, 0.3, 0.25, 0.2, 0.2, 0.15, 0.15, 0.1, 0.1, 0.1]


def in_quadrature(errors: Sequence[float]) -> Evaluate:
    """Return the rule by which errors add up as independent ones; copies agree."""

    def evaluate(plan: Plan, feed: Sample) -> float:
        del feed
        return math.hypot(*(errors[i] for i in range(len(errors)) if i not in plan.kept))

    return evaluate


def standing_of(
    ending: Ending,
    outcome: Outcome,
    *,
    refuted: Collection[Plan] = (),
    certify: Certify = "full",
) -> Standing:
    """Return what is known of an answer of which no trial was seen."""
    seen = JudgedTrials(tolerance=1.0, size=SIZE)
    return Standing(
        ending=ending, outcome=outcome, refuted=refuted, copies=True, certify=certify, seen=seen
    )


def settle(
    path: Path, rule: Evaluate, answer: Plan, *, spread: str | None = None, builds: bool = False
) -> tuple[Ending, Curve, Driver]:
    """Complete the curve of an answer, and go on as long as a better plan is found."""
    driver, ledger = driver_of(path, Simulated(rule), copies=copies_of)
    problem = replace(oracles.problem(SIZE), builds=builds)
    ending = Ending(status=Status.FOUND, plan=answer, spread=spread)
    with ledger:
        while True:
            curve = Curve(problem=problem)
            driver.run(sweep(curve))
            assert ending.plan is not None
            asked = Proposal(plan=ending.plan, phase=Phase.RECHECK, draw=1)
            (outcome,) = driver.consider_all([asked])
            driver.run(complete(curve, ending.plan, outcome))
            standing = standing_of(ending, outcome, refuted=driver.refuted)
            standing.seen.having(driver.trials)
            better = driver.run(best_known(problem, curve, standing))
            if better is None:
                return ending, curve, driver
            ending = better


@pytest.mark.parametrize("builds", [False, True])
def test_fewer_layers_that_hold_take_the_place(tmp_path: Path, builds: bool) -> None:
    """The three culprits suffice; an answer of nine other layers and these gives way."""
    answer = Plan.of((0, 1, 2, 4, 6, 8, 9, 10, 11))
    ending, _, driver = settle(tmp_path, in_quadrature(ERRORS), answer, builds=builds)
    assert (Plan.of((0, 1, 2)), (answer,)) == (ending.plan, ending.passed_over)
    drops = {
        trial.proposal.plan: trial.outcome.failed
        for trial in driver.trials
        if trial.proposal.phase is Phase.CERTIFICATE
    }
    assert {Plan.of(two): True for two in ((1, 2), (0, 2), (0, 1))} == drops
    judged = [t for t in driver.trials if "better plan" in t.proposal.reason]
    assert 2 == len({t.proposal.draw for t in judged}) == len(judged)
    assert all((Kind.REBUILD if builds else Kind.JUDGE) is t.proposal.kind for t in judged)


def test_every_layer_is_no_answer_where_fewer_are_exact(tmp_path: Path) -> None:
    """Only the last layer can run low, and exactly: "nothing gained" would be wrong."""
    errors = [math.inf] * (SIZE - 1) + [0.0]
    ending, _, _ = settle(tmp_path, in_quadrature(errors), Plan.all_high(SIZE), spread=NO_SEARCH)
    assert ending.plan is not None and len(ending.plan) < SIZE


def test_what_fails_on_copies_does_not(tmp_path: Path) -> None:
    """A plan that passes on a point's few copies, and not on others, is left; and stays so."""

    def rule(plan: Plan, feed: Sample) -> float:
        exact = in_quadrature(ERRORS)(plan, feed)
        luck = np.random.default_rng([*feed["x"].tobytes()]).random()
        return exact * (1.0 if len(plan) > 7 or luck < 0.6 else 9.0)

    answer = Plan.of((0, 1, 2, 4, 6, 8, 9, 10, 11))
    ending, _, driver = settle(tmp_path, rule, answer)
    assert ending.plan is not None and len(ending.plan) > 7
    trials = len(driver.trials)
    again, _, driver = settle(tmp_path, rule, answer)
    assert (ending.plan, trials) == (again.plan, len(driver.trials))


@pytest.mark.parametrize("spread", [None, NO_SEARCH])
def test_a_layer_more_for_half_the_error(tmp_path: Path, spread: str | None) -> None:
    """Where rounding chose the layers, one more is worth half of the error; else none is added."""
    errors = [0.9, 0.89, 0.88, 0.87, 0.86, 0.85, 0.84, 0.83, 0.82, 0.81, 0.8, 0.1]
    answer = Plan.of(range(10))
    better = Plan.of(range(11))
    with driven(tmp_path, Simulated(in_quadrature(errors)), copies=copies_of) as driver:
        curve = Curve(problem=oracles.problem(SIZE))
        outcomes = {plan: driver.run(curve.judge(plan, "a point")) for plan in (answer, better)}
        ending = Ending(status=Status.FOUND, plan=answer, spread=spread)
        standing = standing_of(ending, outcomes[answer])
        found = driver.run(best_known(oracles.problem(SIZE), curve, standing))
    assert (None if spread is None else better) == (found and found.plan)
    if spread is not None:
        assert not [t for t in driver.trials if t.proposal.phase is Phase.CERTIFICATE]


def test_near_the_tolerance_fewer_layers_are_not_better(tmp_path: Path) -> None:
    """What is widened has to be two deviations below it, and so has a plan in its place."""

    def rule(plan: Plan, feed: Sample) -> float:
        luck = np.random.default_rng([*feed["x"].tobytes(), *plan.mask.to_bytes(2, "little")])
        return 0.1 if len(plan) > 8 else 0.97 if luck.random() < 0.75 else 0.4

    with driven(tmp_path, Simulated(rule), copies=copies_of) as driver:
        curve = Curve(problem=oracles.problem(SIZE))
        plans = [Plan.of(range(4)), Plan.of(range(10))]
        outcomes = [driver.run(curve.judge(plan, "a point")) for plan in plans]
        assert all(each.passed for each in outcomes)
        for spread in (None, NO_SEARCH):
            ending = Ending(status=Status.FOUND, plan=plans[1], spread=spread)
            standing = standing_of(ending, outcomes[1], certify="none")
            found = driver.run(best_known(oracles.problem(SIZE), curve, standing))
            assert (plans[0] if spread is None else None) == (found and found.plan)


@pytest.mark.parametrize("needed", [3, 7, 8, 9, 11])
def test_a_widening_without_figures_goes_back(tmp_path: Path, needed: int) -> None:
    """Steps double where every error is infinite; the last one is halved to what suffices."""

    def rule(plan: Plan, feed: Sample) -> float:
        del feed
        return 0.0 if len(plan) >= needed else math.inf

    with driven(tmp_path, Simulated(rule), copies=lambda sets: copies_of(sets, 4)) as driver:
        holding = StabilityCheck(problem=oracles.problem(SIZE))
        nothing = Plan.of(())
        refuted = driver.run(holding.judge(nothing, "all low"))
        wider = driver.run(holding.widened(nothing, refuted))
    assert wider is not None and needed == len(wider)
    assert SampleSet.JUDGED is driver.trials[-1].proposal.samples
