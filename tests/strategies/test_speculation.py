"""Looking ahead: the sequential searches are those of the papers, and workers save rounds."""

import cProfile
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
import textbook
from effort import examples
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy
from precision_bisect.search.sensitivity import by_sensitivity
from precision_bisect.trial import Kind
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.ddmin import Ddmin
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.hierarchical import Hierarchical
from precision_bisect_strategies.prefix import Prefix
from precision_bisect_strategies.probdd import NEVER, SURELY, ProbDD
from precision_bisect_strategies.quickxplain import QuickXplain
from precision_bisect_strategies.speculation import speculate

LAYERS = 500


def needed_by(oracle: Oracle, size: int, search: Search[Plan]) -> tuple[Plan, list[Plan]]:
    """Return the answer of a search and the distinct plans it tried, the preflight's left out."""
    simulation = Simulation(size, oracle)
    plan = simulation.run(search)
    tried = [t.proposal.plan for t in simulation.trials if t.proposal.kind is Kind.JUDGE]
    return plan, tried


@given(st.integers(2, 30), st.integers(0, 1000), st.floats(0.1, 0.9))
@examples(25)
def test_the_searches_are_those_of_the_papers(size: int, seed: int, share: float) -> None:
    """One worker tries, in the same order, the plans that the recursive algorithms try."""
    rng = random.Random(seed)
    errors = [rng.choice((0.01, 0.2, 3.0)) * rng.random() for _ in range(size)]
    total = sum(errors)
    errors = [error * oracles.TOLERANCE / (share * total) for error in errors]
    oracle, asked = oracles.additive(errors), oracles.problem(size)
    order = by_sensitivity(errors)
    expected = needed_by(oracle, size, textbook.quickxplain(order))
    assert expected == needed_by(oracle, size, QuickXplain().search(asked))
    expected = needed_by(oracle, size, textbook.ddmin(list(range(size))))
    assert expected == needed_by(oracle, size, Ddmin().search(asked))
    priors = {
        layer: min(max(error / (error + oracles.TOLERANCE), NEVER / size), SURELY)
        for layer, error in enumerate(errors)
    }
    expected = needed_by(oracle, size, textbook.probdd(priors))
    assert expected == needed_by(oracle, size, ProbDD().search(asked))


def driven(strategy: Strategy, asked: Problem, oracle: Oracle, seed: int) -> tuple[int, int]:
    """Return the trials and the rounds that a strategy takes with a useless ranking."""
    rng = random.Random(seed)
    simulation = Simulation(asked.size, oracle, [rng.random() for _ in asked.names])
    search = strategy.search(asked)
    rounds = 0
    try:
        batch = next(search)
        while True:
            rounds += batch[0].kind is Kind.JUDGE
            assert len(batch) <= asked.workers or batch[0].kind is Kind.PREDICT
            batch = search.send(tuple(map(simulation.answer, batch)))
    except StopIteration as end:
        assert oracle(end.value.kept).passed
    return simulation.count(), rounds


@pytest.mark.parametrize(
    ("make", "four", "sixteen"),
    [
        (Guided, 0.50, 0.28),
        (QuickXplain, 0.50, 0.28),
        (ProbDD, 0.50, 0.28),
        (Hierarchical, 0.50, 0.28),
        (Ddmin, 0.30, 0.10),
        (Prefix, 0.50, 0.28),
    ],
)
def test_workers_save_rounds(make: Callable[[], Strategy], four: float, sixteen: float) -> None:
    """4 workers need at most half, 16 about a quarter of the rounds of one; scans far fewer."""
    oracle, asked = (
        oracles.monotone(random.Random(0).sample(range(LAYERS), 20)),
        oracles.problem(LAYERS),
    )
    alone, fours, sixteens = (
        driven(make(), replace(asked, workers=workers), oracle, 0)[1] for workers in (1, 4, 16)
    )
    assert fours <= four * alone
    assert sixteens <= sixteen * alone


def test_what_was_asked_ahead_is_not_asked_again() -> None:
    """Answers that were not needed at first serve when the search comes to them."""
    asked = replace(oracles.problem(8), workers=3)

    def drop_next(state: tuple[Plan, int]) -> Search[tuple[Plan, int]]:
        plan, layer = state
        if layer == 8:
            return state
        outcome = yield from ask(plan.without((layer,)), f"drop {layer}")
        return (plan.without((layer,)) if outcome.passed else plan), layer + 1

    simulation = Simulation(8, oracles.monotone([2, 5]))
    search = speculate(asked, drop_next, (Plan.all_high(8), 0))
    tried: list[Plan] = []
    batch = next(search)
    with pytest.raises(StopIteration) as end:
        while True:
            tried += [proposal.plan for proposal in batch]
            batch = search.send(tuple(map(simulation.answer, batch)))
    assert (Plan.of((2, 5)), 8) == end.value.value
    assert len(tried) == len(set(tried))


def test_what_is_known_to_the_preflight_is_not_asked() -> None:
    """A layer that is all there is stays without a trial: all-low is known to fail."""
    for make in (QuickXplain, ProbDD, Hierarchical, Ddmin, Prefix):
        plan, tried = needed_by(oracles.monotone([0]), 1, make().search(oracles.problem(1)))
        assert (Plan.of((0,)), []) == (plan, tried)


def test_looking_ahead_in_a_large_network_is_cheap() -> None:
    """5,000 layers, 20 of them needed, in no order, 16 workers: few rounds and little work."""
    size = 5000
    oracle = oracles.monotone(random.Random(0).sample(range(size), 20))
    simulation = Simulation(size, oracle, [0.0] * size)
    asked = replace(oracles.problem(size), workers=16)
    with cProfile.Profile() as profile:
        simulation.run(QuickXplain().search(asked))
    assert simulation.count() <= 1200
    assert sum(entry.callcount for entry in profile.getstats()) <= 500_000
