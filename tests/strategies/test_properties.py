"""What every installed strategy promises, over generated oracles."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from drawn import SMALL, any_case, any_oracle, culprits
from effort import examples
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.plugins import STRATEGIES, installed, load
from precision_bisect.protocols import Problem, Strategy
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.testing.cases import Case
from precision_bisect.testing.strategy_contract import STRATEGY_PROMISES, Promise
from precision_bisect.trial import Kind
from precision_bisect_strategies.ddmin import Ddmin
from precision_bisect_strategies.exhaustive import Exhaustive
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.hierarchical import Hierarchical
from precision_bisect_strategies.prefix import Prefix
from precision_bisect_strategies.probdd import ProbDD
from precision_bisect_strategies.quickxplain import QuickXplain
from simulated import Simulated, by, driven

EVERY: dict[str, Callable[[], Strategy]] = {
    name: load(STRATEGIES, name) for name in installed(STRATEGIES)
}
MINIMAL = [make for make in EVERY.values() if make().minimal]
LARGE = [make for make in MINIMAL if make().largest is None]
FEW = examples(12)
FEWER = examples(4)

every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


@pytest.fixture(autouse=True)
def short_explorations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pareto try a few plans instead of forty, which its own tests do."""
    monkeypatch.setattr("precision_bisect_strategies.pareto.FURTHER_TRIALS", 4)
    monkeypatch.setattr("precision_bisect_strategies.pareto.MOST_ASKED", 6)


@pytest.mark.parametrize(
    "promise", STRATEGY_PROMISES, ids=[promise.text for promise in STRATEGY_PROMISES]
)
@every
@given(any_case())
@FEWER
def test_promises_are_kept(make: Callable[[], Strategy], promise: Promise, case: Case) -> None:
    """Every strategy keeps every promise of the contract on drawn problems, too."""
    for vary in promise.variations:
        promise.check(make, vary(case))


@pytest.mark.parametrize("make", [Guided, Ddmin, QuickXplain, ProbDD, Hierarchical])
@given(culprits(), st.sets(st.integers(0, 39)), st.sampled_from([1, 4]))
@FEW
def test_a_plan_that_is_known_to_pass_is_where_it_begins(
    make: Callable[[], Strategy],
    drawn: tuple[int, frozenset[int]],
    more: set[int],
    workers: int,
) -> None:
    """From a plan that passes the search goes down, and asks for nothing high outside of it."""
    size, needed = drawn
    top = Plan.of(needed | {layer for layer in more if layer < size})
    asked = replace(oracles.problem(size), passing=top, workers=workers)
    simulation = Simulation(size, oracles.monotone(needed))
    assert Plan.of(needed) == simulation.run(make().search(asked))
    judged = (t.proposal.plan for t in simulation.trials if t.proposal.kind is Kind.JUDGE)
    assert all(plan.kept <= top.kept or plan == Plan.all_high(size) for plan in judged)


@every
@given(any_oracle(SMALL), st.integers(1, 12), st.sampled_from([1, 4]))
@FEWER
def test_budgets_hold(
    make: Callable[[], Strategy], drawn: tuple[int, Oracle], most: int, workers: int
) -> None:
    """A driver with a budget never tries more than it allows, and what is best has passed."""
    size, oracle = drawn
    asked = replace(oracles.problem(size), workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        backend = Simulated(by(oracle))
        with driven(Path(folder), backend, budget=Budget(max_trials=most)) as driver:
            with suppress(BudgetSpent):
                driver.run(make().search(asked))
            best = driver.best()
    tried = [trial for trial in driver.trials if trial.proposal.kind is not Kind.PREDICT]
    assert len(tried) <= most
    assert best is None or oracle(best.proposal.plan.kept).passed


@pytest.mark.parametrize("make", MINIMAL)
@given(culprits(8))
@FEW
def test_monotone_culprits_are_found_exactly(
    make: Callable[[], Strategy], drawn: tuple[int, frozenset[int]]
) -> None:
    """With culprits that must each be kept, exactly those are kept."""
    size, needed = drawn
    plan, _ = oracles.certified(make(), oracles.problem(size), oracles.monotone(needed))
    assert plan.kept == needed


@pytest.mark.parametrize("make", LARGE)
@given(any_oracle(14))
@FEW
def test_no_single_layer_can_be_dropped_after_the_certificate(
    make: Callable[[], Strategy], drawn: tuple[int, Oracle]
) -> None:
    """Of the certified plan every single drop was tried and none passed, whatever the oracle."""
    size, oracle = drawn
    plan, simulation = oracles.certified(make(), oracles.problem(size), oracle)
    assert simulation.passed(plan)
    assert not any(oracle(plan.kept - {layer}).passed for layer in plan.kept)


@pytest.mark.parametrize("make", LARGE)
@given(culprits(60))
@FEW
def test_pass_fail_alone_finds_the_culprits(
    make: Callable[[], Strategy], drawn: tuple[int, frozenset[int]]
) -> None:
    """A check without a figure leads to the same answer."""
    size, needed = drawn
    oracle = oracles.without_figures(oracles.monotone(needed))
    plan, _ = oracles.certified(make(), oracles.problem(size, tolerance=None), oracle)
    assert plan.kept == needed


@given(any_oracle(8))
@examples(20)
def test_exhaustive_finds_a_minimum(drawn: tuple[int, Oracle]) -> None:
    """Nothing smaller than what the exhaustive search keeps passes."""
    size, oracle = drawn
    plan, _ = oracles.simulate(Exhaustive(), oracles.problem(size), oracle)
    every = [frozenset(i for i in range(size) if mask >> i & 1) for mask in range(2**size)]
    assert len(plan) == min(len(kept) for kept in every if oracle(kept).passed)


@given(culprits(60))
@examples(30)
def test_prefix_finds_the_shortest_end(drawn: tuple[int, frozenset[int]]) -> None:
    """With a monotone oracle, no shorter prefix or suffix of the network passes."""
    size, needed = drawn
    plan, trials = oracles.simulate(Prefix(), oracles.problem(size), oracles.monotone(needed))
    ends = [range(k) for k in range(size + 1)] + [range(k, size) for k in range(size + 1)]
    assert plan == min(Plan.of(end) for end in ends if needed <= set(end))
    assert len(trials) <= 2 * size.bit_length()


@pytest.mark.parametrize(
    "clusters", [[range(40, 45)], [range(5), range(60, 65), range(30, 35)]], ids=["one", "three"]
)
@pytest.mark.parametrize("make", LARGE)
def test_clusters_are_kept_whole(
    make: Callable[[], Strategy], clusters: Sequence[Sequence[int]]
) -> None:
    """Blocks that only help when kept whole are found whole, and nothing else is."""
    plan, _ = oracles.certified(make(), oracles.problem(80), oracles.clustered(clusters))
    assert plan.kept == frozenset(layer for cluster in clusters for layer in cluster)


@pytest.mark.parametrize("make", LARGE)
def test_one_of_each_interacting_pair_is_kept(make: Callable[[], Strategy]) -> None:
    """Layers that are harmless alone and harmful together cost one layer a pair."""
    pairs = [(3, 50), (20, 21), (44, 7)]
    plan, _ = oracles.certified(make(), oracles.problem(64), oracles.interacting(pairs))
    assert len(plan) == len(pairs)
    assert all(len(plan.kept & set(pair)) == 1 for pair in pairs)


@pytest.mark.parametrize("make", [QuickXplain, ProbDD, Hierarchical, Ddmin, Prefix, Exhaustive])
@given(any_oracle(), st.integers(2, 20))
@FEW
def test_more_workers_do_not_change_the_answer(
    make: Callable[[], Strategy], drawn: tuple[int, Oracle], workers: int
) -> None:
    """Looking ahead finds what the sequential search finds, in no more rounds."""
    size, oracle = drawn
    asked = oracles.problem(size)
    alone, trials = oracles.simulate(make(), asked, oracle)
    together, batches = rounds(make(), replace(asked, workers=workers), oracle)
    assert alone == together
    assert batches <= sum(trial.proposal.kind is Kind.JUDGE for trial in trials)


def rounds(strategy: Strategy, asked: Problem, oracle: Oracle) -> tuple[Plan, int]:
    """Drive a strategy; return its plan and the number of batches with trials in them."""
    simulation = Simulation(asked.size, oracle)
    search = strategy.search(asked)
    count = 0
    try:
        batch = next(search)
        while True:
            count += batch[0].kind is Kind.JUDGE
            batch = search.send(tuple(map(simulation.answer, batch)))
    except StopIteration as end:
        plan: Plan = end.value
        return plan, count
