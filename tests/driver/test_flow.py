"""The course of a run over simulated backends: endings, noise, failures, held-out samples."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import oracles
from precision_bisect.errors import PluginError
from precision_bisect.judging.inputs.copies import FACTORS, Copies
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Problem, Sample, Search, Strategy
from precision_bisect.runs.monitoring.events import (
    Event,
    PhaseStarted,
    TrialFinished,
    TrialStarted,
)
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.driver import Driver
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet, TrialStatus, Verdict
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Evaluate, Simulated, by, driven, driver_of, samples

CRASH = Outcome(status=TrialStatus.CRASHED, message="segmentation fault")


def course(
    path: Path, evaluate: Evaluate, strategy: Strategy | None = None, *, held_out: int = 0
) -> tuple[Ending, Driver, Simulated]:
    """Run the whole flow over a rule."""
    backend = Simulated(evaluate)
    with driven(path, backend, held_out=held_out) as driver:
        asked = oracles.problem(SIZE)
        ending = driver.run(flow(asked, strategy or Guided(), Course(held_out=held_out > 0)))
    return ending, driver, backend


def test_a_plan_is_found_and_every_kept_layer_was_dropped_once(tmp_path: Path) -> None:
    """The answer passed, each single drop from it was tried directly, and each failed."""
    ending, driver, backend = course(tmp_path, by(oracles.monotone([2, 3, 9])))
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of((2, 3, 9)))
    for layer in (2, 3, 9):
        drop = driver.outcome_of(Plan.of((2, 3, 9)).without((layer,)), SampleSet.JUDGED)
        assert drop is not None
        assert drop.failed
    assert len(backend.built) == len(driver.trials)


def test_noise_and_answer_are_built_afresh(tmp_path: Path) -> None:
    """What earlier builds have timed would make them more alike than those of others."""
    with driven(tmp_path, backend := Simulated(by(oracles.monotone([4])))) as driver:
        asked = replace(oracles.problem(SIZE), builds=True)
        ending = driver.run(flow(asked, Guided(), Course()))
    assert ending.plan == Plan.of((4,))
    assert {Plan.all_high(SIZE), ending.plan} <= set(backend.afresh)
    assert len(backend.afresh) < len(backend.built)


@pytest.mark.parametrize(
    ("needed", "beyond", "large", "forecasts"),
    [
        ([3, 9], [3, 9], True, False),
        ([3, 9], [2, 3, 9], True, False),
        ([3, 9], [3], True, True),
        ([3, 9], [3, 9], False, True),
    ],
    ids=["all needed", "one too many", "not enough", "small"],
)
def test_what_leaves_the_range_of_a_large_model_is_not_ranked(
    needed: list[int], beyond: list[int], large: bool, forecasts: bool, tmp_path: Path
) -> None:
    """Where it passes each drop of it is built, and nothing forecast; the answer is minimal."""
    rule = by(oracles.monotone(needed))
    with driven(tmp_path, Simulated(rule), emulator=Simulated(rule)) as driver:
        asked = replace(oracles.problem(SIZE), builds=True, large=large)
        asked = replace(asked, beyond_range=lambda: Plan.of(beyond))
        ending = driver.run(flow(asked, Guided(), Course(certify="forecasts", curve=True)))
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of(needed))
    assert forecasts == any(each.proposal.kind is Kind.PREDICT for each in driver.trials)
    for layer in needed:
        drop = driver.outcome_of(Plan.of(needed).without((layer,)), SampleSet.JUDGED)
        assert drop is not None and drop.failed


def test_all_high_that_fails_is_no_precision_problem(tmp_path: Path) -> None:
    """When even all-high fails, nothing is searched and the error is said."""
    ending, driver, _ = course(tmp_path, lambda plan, feed: 3.5)
    assert ending.status is Status.NOT_PRECISION
    assert "error 3.5" in ending.message
    assert len(driver.trials) == 2


def test_all_high_that_does_not_run_says_so(tmp_path: Path) -> None:
    """When all-high does not run, the backend's own words are in the message."""

    def crash(plan: Plan, feed: Sample) -> float:
        raise BackendFailure(CRASH)

    ending, driver, _ = course(tmp_path, crash)
    assert ending.status is Status.NO_BASELINE
    assert "segmentation fault" in ending.message
    assert driver.trials[0].outcome.wall_s > 0


def noisy(figures: list[float]) -> Evaluate:
    """Return a rule that gives the figures one after the other; None crashes."""
    left = iter(figures)
    return lambda plan, feed: next(left)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ([0.9, -0.9], "by 1.8"),
        ([0.0, float("nan")], "by inf"),
        ([0.0, float("inf")], "by inf"),
    ],
)
def test_noise_above_the_tolerance_is_infeasible(
    tmp_path: Path, figures: list[float], says: str
) -> None:
    """Two runs of one plan that differ by more than the tolerance end the run."""
    ending, _, _ = course(tmp_path, noisy(figures))
    assert ending.status is Status.INFEASIBLE
    assert says in ending.message


def test_a_second_run_that_fails_is_infeasible(tmp_path: Path) -> None:
    """A plan that runs once and not again is said to, without a figure."""
    runs: list[Plan] = []

    def evaluate(plan: Plan, feed: Sample) -> float:
        runs.append(plan)
        if len(runs) > 1:
            raise BackendFailure(CRASH)
        return 0.0

    ending, _, _ = course(tmp_path, evaluate)
    assert ending.status is Status.INFEASIBLE
    assert "ran once and then did not: segmentation fault" in ending.message


def test_all_low_that_passes_needs_nothing(tmp_path: Path) -> None:
    """When all-low passes there is nothing to keep, and three trials say so."""
    ending, driver, _ = course(tmp_path, lambda plan, feed: 0.5)
    assert (ending.status, ending.plan) == (Status.NOTHING_TO_KEEP, Plan.of(()))
    assert len(driver.trials) == 3
    best = driver.best()
    assert best is not None and Plan.of(()) == best.proposal.plan


@pytest.mark.parametrize("seed", range(8))
def test_failed_builds_are_gone_round(tmp_path: Path, seed: int) -> None:
    """With a third of all builds failing, the answer still passed and is 1-minimal."""
    oracle = oracles.flaky(oracles.monotone([1, 7]), SIZE, seed, share=0.33)
    ending, driver, _ = course(tmp_path, by(oracle))
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    assert oracle(ending.plan.kept).passed
    assert not any(oracle(ending.plan.kept - {layer}).passed for layer in ending.plan.kept)
    unresolved = [t for t in driver.trials if t.outcome.status is TrialStatus.BUILD_FAILED]
    assert all(t.outcome.verdict is None for t in unresolved)


def held_out_rule(plan: Plan, feed: Sample) -> float:
    """Need layer 2 on the judging sample and layer 5 too on the one held out."""
    needed = {2} if feed["x"][0] == 0 else {2, 5}
    return 0.0 if needed <= plan.kept else 5.0


def test_samples_held_out_decide_nothing(tmp_path: Path) -> None:
    """An answer that fails on them is what it was, and so is the best so far."""
    ending, driver, _ = course(tmp_path, held_out_rule, held_out=1)
    assert (Status.FOUND, Plan.of((2,)), "") == (ending.status, ending.plan, ending.message)
    (told,) = (t for t in driver.trials if t.proposal.samples == SampleSet.HELD_OUT)
    assert told.outcome.failed and told.outcome.evidence.one_by_one is not None
    assert ([1], [1]) == (
        told.outcome.evidence.one_by_one.numbers,
        told.outcome.evidence.one_by_one.failed,
    )
    best = driver.best()
    assert best is not None and Plan.of((2,)) == best.proposal.plan


def test_held_out_samples_that_agree_cost_one_trial(tmp_path: Path) -> None:
    """An answer that holds on samples held out is final, judged by the others."""
    ending, driver, _ = course(tmp_path, by(oracles.monotone([4])), held_out=1)
    assert (ending.plan, ending.samples) == (Plan.of((4,)), SampleSet.JUDGED)
    assert sum(t.proposal.phase is Phase.RECHECK for t in driver.trials) == 1


def by_factors(sets: SampleSets) -> Copies:
    """Return copies by factors."""
    return Copies(samples=sets, count=16, refer=dict, layers=SIZE)


def half_of_the_time(plan: Plan, feed: Sample) -> float:
    """Pass on what is not changed; else layers 2 and 3 together decide, or luck."""
    if {2, 3} <= plan.kept:
        return 0.0
    return 5.0 if (FACTORS in feed and feed[FACTORS][0] > 1) or 2 not in plan.kept else 0.0


def test_a_plan_that_holds_on_some_copies_is_told_from_one_that_holds(tmp_path: Path) -> None:
    """It is no best so far, but what there is where nothing else is."""
    driver, ledger = driver_of(
        tmp_path,
        Simulated(half_of_the_time),
        copies=by_factors,
    )
    some, never = Plan.of((2,)), Plan.of((3,))
    with ledger:
        assert driver.unsteady() is None
        for plan in (some, never, Plan.of((2, 4))):
            driver.consider_all([Proposal(plan=plan)])
        driver.consider_all([Proposal(plan=some, phase=Phase.RECHECK, draw=1)])
        assert driver.unsteady() == driver.trials[0]
        best = driver.best()
    assert best is not None
    assert Plan.of((2, 4)) == best.proposal.plan


def test_a_plan_that_fails_on_every_copy_is_a_near_miss(tmp_path: Path) -> None:
    """It has passed on the samples; one that fails on fewer of its copies comes before it."""

    def rule(plan: Plan, feed: Sample) -> float:
        if FACTORS not in feed:
            return 0.0
        return 5.0 if plan.kept == {2} else half_of_the_time(Plan.of((2,)), feed)

    driver, ledger = driver_of(
        tmp_path,
        Simulated(rule),
        copies=by_factors,
    )
    every, some = Plan.of((2,)), Plan.of((2, 5, 6))
    with ledger:
        for plan, near in ((every, every), (some, some)):
            driver.consider_all([Proposal(plan=plan)])
            driver.consider_all([Proposal(plan=plan, phase=Phase.RECHECK, draw=1)])
            found = driver.unsteady()
            assert found is not None
            assert near == found.proposal.plan
        assert driver.best() is None


class Liar:
    """A strategy that ends with a plan that fails."""

    name: ClassVar[str] = "liar"
    assumption: ClassVar[str] = "nobody looks"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Ask nothing and answer wrongly."""
        yield from ()
        return Plan.of((0,))


def test_a_strategys_answer_is_not_believed(tmp_path: Path) -> None:
    """A third-party strategy whose answer does not pass ends the run with its name."""
    with pytest.raises(PluginError, match="'liar' ended with a plan that does not pass"):
        course(tmp_path, by(oracles.monotone([3])), Liar())


def test_a_trial_is_evaluated_once_and_recalled_after(tmp_path: Path) -> None:
    """The same proposal again comes from the ledger, in this process and in the next."""
    seen: list[Event] = []
    backend = Simulated(by(oracles.monotone([1])))
    proposal = Proposal(plan=Plan.of((1, 2)))
    for _ in range(2):
        with driven(tmp_path, backend, observer=seen.append) as driver:
            (first,) = driver.consider_all([proposal])
            (second,) = driver.consider_all([proposal])
        assert first == second
        assert first.verdict is Verdict.PASS
    assert backend.built == [proposal.plan]
    once = [PhaseStarted, TrialStarted, TrialFinished, TrialFinished]
    assert [type(event) for event in seen] == [*once, PhaseStarted, TrialFinished, TrialFinished]


def test_ctrl_c_while_an_outcome_is_recorded_costs_no_trial(tmp_path: Path) -> None:
    """Recording waits for the disk; what was evaluated is recorded all the same."""
    driver, ledger = driver_of(tmp_path, Simulated(lambda *_: 0.1))
    finish, interrupts = ledger.finish, [KeyboardInterrupt()]

    def interrupted(proposal: Proposal, outcome: Outcome) -> None:
        if interrupts:
            raise interrupts.pop()
        finish(proposal, outcome)

    with ledger, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driver.consider_all([Proposal(plan=Plan.of((1,)))])
        assert [*driver.trials] == ledger.trials() != []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_breaks_a_trial_off_is_not_held_against_its_plan(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """Ctrl-C during a trial, as often as it happens, leaves no trace of the trial."""

    def evaluate(plan: Plan, feed: Sample) -> float:
        raise error

    for _ in range(3):
        driver, ledger = driver_of(tmp_path, Simulated(evaluate))
        with ledger, pytest.raises(error):
            driver.consider_all([Proposal(plan=Plan.of((1,)))])
        assert driver.trials == ()


def test_time_counts_against_the_budget() -> None:
    """The time limit counts this session's seconds and those of earlier ones."""
    now = iter((100.0, 101.0, 104.0))
    budget = Budget(max_time_s=10.0, spent_s=6.5, clock=lambda: next(now))
    budget.admit(counted=True)
    with pytest.raises(BudgetSpent, match="--max-time of 10 s"):
        budget.admit(counted=False)


def test_a_plan_that_other_samples_refute_is_not_there(tmp_path: Path) -> None:
    """Copies that fail are bad luck, other samples that fail are not."""

    def rule(plan: Plan, feed: Sample) -> float:
        return 5.0 if feed["x"][0] > 0 else half_of_the_time(plan, feed)

    driver, ledger = driver_of(
        tmp_path,
        Simulated(rule),
        sets=samples(2, pool=[0]),
        copies=by_factors,
    )
    plan, chosen = Plan.of((2,)), SampleSet.chosen([0])
    with ledger:
        driver.consider_all([Proposal(plan=plan)])
        driver.consider_all([Proposal(plan=plan, phase=Phase.RECHECK, draw=1)])
        assert driver.unsteady() is not None
        others = Proposal(plan=plan, samples=chosen.others, phase=Phase.RECHECK)
        assert driver.consider_all([others])[0].failed
        assert driver.unsteady() is None
