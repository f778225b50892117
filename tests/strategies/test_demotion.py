"""One step after the other: what passes runs low, what does not is cut down to one layer."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.testing.cases import outcome
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus, Verdict
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion, ask_next
from precision_bisect_strategies.guided import Guided


def state(errors: list[float], limit: float) -> Demotion:
    """Return the state before any trial of layers whose errors add up."""
    return Demotion(
        order=tuple(range(len(errors))),
        beliefs=Beliefs.at_first(errors, [1.0] * len(errors), power=1.0),
        limit=limit,
        power=1.0,
        plan=Plan.all_high(len(errors)),
        error=0.0,
        pool=tuple(range(len(errors))),
        culprit=math.e,
    )


def run(start: Demotion, oracle: Oracle) -> tuple[Demotion, list[Plan]]:
    """Take steps until nothing is asked; return the end and what was asked."""
    asked: list[Plan] = []
    while True:
        search = ask_next(start)
        try:
            (proposal,) = next(search)
        except StopIteration as end:
            return end.value, asked
        asked.append(proposal.plan)
        try:
            search.send((oracle(proposal.plan.kept),))
        except StopIteration as end:
            start = end.value


@pytest.mark.parametrize("limit", [1e200, 1e-200])
def test_a_limit_whose_square_is_no_float(limit: float) -> None:
    """What is infinite is found all the same."""
    problem = replace(oracles.problem(8), tolerance=limit)
    broken = lambda kept: outcome(0.0 if 3 in kept else math.inf)  # noqa: E731 - a rule in a line
    assert 3 in Simulation(8, broken).run(Guided().search(problem)).kept


@examples(20)
@given(
    errors=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 9),
)
def test_every_layer_is_decided_on_and_the_plan_passed(
    errors: list[float], share: float, seed: int
) -> None:
    """Whatever the errors and however wrong the ranking, it ends on a plan that passed."""
    limit = share * sum(errors) + 1e-9
    true = random.Random(seed).sample(errors, len(errors))

    def oracle(kept: frozenset[int]) -> Outcome:
        error = sum(each for i, each in enumerate(true) if i not in kept)
        verdict = Verdict.PASS if error <= limit else Verdict.FAIL
        return Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=error)

    end, asked = run(state(sorted(errors), limit), oracle)
    assert end.plan == Plan.all_high(len(errors)) or oracle(end.plan.kept).passed
    assert not end.pool and not end.suspects
    low = set(range(len(errors))) - end.plan.kept
    assert low.isdisjoint(end.kept) and low | set(end.kept) == set(range(len(errors)))
    assert len(asked) <= 12 * len(errors)


def test_a_group_without_a_verdict_is_gone_around() -> None:
    """Plans that cannot be built end nothing: smaller groups are tried, single layers stay."""
    size, cursed = 24, frozenset((3, 4))
    small = oracles.additive([0.01 * oracles.TOLERANCE] * size)

    def oracle(kept: frozenset[int]) -> Outcome:
        if cursed.isdisjoint(kept) or len(cursed & kept) == 1:
            return Outcome(status=TrialStatus.BUILD_FAILED)
        return small(kept)

    simulation = Simulation(size, oracle, emulator=small)
    plan = simulation.run(Guided().search(oracles.problem(size)))
    assert cursed <= plan.kept
    assert simulation.passed(plan)


def test_the_layer_that_the_ranking_missed_is_kept() -> None:
    """Not the one that it says is worst, which could go once the other is kept."""
    emulator = oracles.additive([0.05] * 19 + [0.5])
    true = [0.9, *([0.01] * 18), 0.5]
    simulation = Simulation(20, oracles.additive(true), emulator=emulator)
    assert simulation.run(Guided().search(oracles.problem(20))).kept == {0}


def test_proposals_tell_how_far_the_search_is() -> None:
    """Each trial says in words what it drops, and how many layers are known to do."""
    simulation = Simulation(60, oracles.monotone({5, 40}))
    simulation.run(Guided().search(oracles.problem(60)))
    told: list[Proposal] = [t.proposal for t in simulation.trials if t.proposal.kind is Kind.JUDGE]
    assert all("of" in each.reason for each in told if each.narrowed_to)
    sizes = [each.narrowed_to for each in told if each.narrowed_to]
    assert sizes == sorted(sizes, reverse=True)
