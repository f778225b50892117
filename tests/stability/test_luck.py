"""A search that luck decides ends early, and its answer holds."""

import math
from pathlib import Path

import numpy as np
import pytest

import oracles
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample, Search
from precision_bisect.runs.results.endings import NO_SEARCH
from precision_bisect.search.certificate.certifying import CERTIFYING, LEAST_RANKED, certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.certificate.proving import Terms, certificate
from precision_bisect.search.luck import FIRST_CHECK, grounded
from precision_bisect.trial import Phase
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.guided import Guided
from simulated import Evaluate, Simulated, copies_of, driven, driver_of

LAYERS = 200
SAMPLE = 0
"""The first feed of `simulated.samples`; copies have other numbers."""


def holding_from(count: int) -> Evaluate:
    """Return a rule by which the sample always passes, its copies with so many layers or more."""

    def evaluate(plan: Plan, feed: Sample) -> float:
        return 0.1 if feed["x"][0] == SAMPLE or len(plan) >= count else 13.0

    return evaluate


def one_by_one(layers: int) -> Search[Plan]:
    """Drop one layer after another, while that passes."""
    plan = Plan.all_high(layers)
    for layer in range(layers):
        outcome = yield from ask(plan.without((layer,)), "drop one")
        plan = plan.without((layer,)) if outcome.passed else plan
    return plan


@pytest.mark.parametrize("least", [LAYERS - 5, LAYERS - FIRST_CHECK - 9, 100])
def test_a_search_goes_back_to_the_smallest_plan_that_holds(tmp_path: Path, least: int) -> None:
    """It ends at twice as many trials as held at most, and finds the last that did by halves."""
    with driven(tmp_path, Simulated(holding_from(least)), copies=copies_of) as driver:
        plan, lucky = driver.run(grounded(one_by_one(LAYERS), Plan.all_high(LAYERS)))
    assert (least, True) == (len(plan), lucky)
    checks = [each for each in driver.trials if each.proposal.draw]
    dropped = LAYERS - least
    assert len(driver.trials) - len(checks) <= max(FIRST_CHECK, 2 * dropped)
    assert len(checks) <= 2 * math.ceil(math.log2(LAYERS))


def test_a_search_whose_plans_hold_is_not_ended(tmp_path: Path) -> None:
    """Copies cost a logarithm of its trials; the plan is the search's own."""
    with driven(tmp_path, Simulated(holding_from(0)), copies=copies_of) as driver:
        plan, lucky = driver.run(grounded(one_by_one(LAYERS), Plan.all_high(LAYERS)))
    assert (0, False) == (len(plan), lucky)
    assert 3 == sum(bool(each.proposal.draw) for each in driver.trials)


def test_an_answer_of_luck_is_not_searched_to_its_end(tmp_path: Path) -> None:
    """A network that selects: beyond some low layers a plan jumps in some evaluations.

    Without checks the search takes 165 trials, nearly one for each layer, and its answer fails.
    """

    def jumping(plan: Plan, feed: Sample) -> float:
        low = LAYERS - len(plan)
        chance = min(0.5, max(0, low - 30) / 10)
        seed = [*feed["x"].tobytes(), *plan.mask.to_bytes(LAYERS // 8, "little")]
        jumps = np.random.default_rng(seed).random() < chance
        return 13.0 if jumps else 0.04 * math.sqrt(low)

    with driven(tmp_path, Simulated(jumping), copies=copies_of) as driver:
        ending = driver.run(flow(oracles.problem(LAYERS), Guided(), Course(copies=True)))
    assert ending.plan is not None and NO_SEARCH == ending.spread
    searched = [each for each in driver.trials if each.proposal.phase is Phase.SEARCH]
    ranked = [each for each in driver.trials if each.proposal.phase is Phase.RANKING]
    assert len(searched) < len(ranked) / 2
    assert not any(each.proposal.phase is Phase.CERTIFICATE for each in driver.trials)
    rechecks = [each for each in driver.trials if each.proposal.phase is Phase.RECHECK]
    assert all(each.outcome.passed for each in rechecks if each.proposal.plan == ending.plan)


def test_a_certificate_costs_no_multiple_of_the_ranking(tmp_path: Path) -> None:
    """Drops that fail on their last copy cost most; those not tried by the bound are unproven."""
    everything = Plan.all_high(LAYERS)

    def late(plan: Plan, feed: Sample) -> float:
        last = 3.100009 < feed["x"][0] < 3.10002
        return 13.0 if len(plan) < LAYERS and last else 0.1

    driver, ledger = driver_of(tmp_path, Simulated(late), copies=copies_of)
    names = [f"layer{i}" for i in range(LAYERS)]
    problem = oracles.problem(LAYERS)
    seen = JudgedTrials(tolerance=problem.tolerance, size=LAYERS, copies=True)
    seen.ranked.add(everything)
    with ledger:
        left = driver.run(certify(problem, everything, "full", seen, 1))
    assert everything == left
    most = CERTIFYING * LEAST_RANKED
    assert most <= seen.certifying < most + 17
    found = certificate(left, seen, names, Terms(mode="full", untested="not tried"))
    assert not found.minimal
    assert 0 < len(found.checked) < LAYERS
    assert LAYERS == len(found.checked) + len(found.unchecked)
