"""What every strategy promises, over generated oracles."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Strategy
from precision_bisect_strategies.ddmin import Ddmin
from precision_bisect_strategies.exhaustive import Exhaustive
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.prefix import Prefix

EVERY: list[type[Strategy]] = [Guided, Ddmin, Prefix, Exhaustive]
MINIMAL: list[type[Strategy]] = [Guided, Ddmin, Exhaustive]
FEW = settings(deadline=None, max_examples=25)


@st.composite
def culprits(draw: st.DrawFn, most: int = 40) -> tuple[int, frozenset[int]]:
    """Draw a number of layers and a set of culprits among them."""
    size = draw(st.integers(1, most))
    found = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=8))
    return size, frozenset(found)


@st.composite
def any_oracle(draw: st.DrawFn, most: int = 9) -> tuple[int, Oracle]:
    """Draw a number of layers and one of every kind of oracle."""
    size = draw(st.integers(2, most))
    layer = st.integers(0, size - 1)
    some = st.sets(layer, min_size=1)
    pairs = st.lists(st.tuples(layer, layer), min_size=1, max_size=3)
    errors = st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size).filter(
        lambda found: sum(found) > oracles.TOLERANCE
    )
    seed = st.integers(0, 1000)
    plain = st.one_of(
        some.map(oracles.monotone),
        st.lists(some, min_size=1, max_size=3).map(oracles.clustered),
        pairs.map(oracles.interacting),
        errors.map(oracles.additive),
        seed.map(lambda number: oracles.non_monotone(size, number)),
    )
    chosen = draw(plain)
    if draw(st.booleans()):
        chosen = oracles.flaky(chosen, size, draw(seed))
    return size, oracles.pass_fail(chosen) if draw(st.booleans()) else chosen


@pytest.mark.parametrize("strategy", EVERY)
@given(any_oracle())
@settings(deadline=None, max_examples=60)
def test_ends_with_a_plan_that_passed(strategy: type[Strategy], drawn: tuple[int, Oracle]) -> None:
    """Whatever the oracle does, the answer is a plan that was tried and passed."""
    size, oracle = drawn
    simulation = Simulation(size, oracle)
    plan = simulation.run(strategy().search(oracles.problem(size)))
    assert simulation.passed(plan)


@pytest.mark.parametrize("strategy", EVERY)
@given(any_oracle())
@FEW
def test_same_outcomes_give_the_same_proposals(
    strategy: type[Strategy], drawn: tuple[int, Oracle]
) -> None:
    """Two searches that are told the same propose the same, trial by trial."""
    size, oracle = drawn
    first = oracles.simulate(strategy(), oracles.problem(size), oracle)
    assert first == oracles.simulate(strategy(), oracles.problem(size), oracle)


@pytest.mark.parametrize("strategy", MINIMAL)
@given(culprits(12))
@FEW
def test_monotone_culprits_are_found_exactly(
    strategy: type[Strategy], drawn: tuple[int, frozenset[int]]
) -> None:
    """With culprits that must each be kept, exactly those are kept."""
    size, needed = drawn
    plan, _ = oracles.certified(strategy(), oracles.problem(size), oracles.monotone(needed))
    assert plan.kept == needed


@pytest.mark.parametrize("strategy", [Guided, Ddmin])
@given(any_oracle(14))
@FEW
def test_no_single_layer_can_be_dropped_after_the_certificate(
    strategy: type[Strategy], drawn: tuple[int, Oracle]
) -> None:
    """Of the certified plan every single drop was tried and none passed, whatever the oracle."""
    size, oracle = drawn
    plan, simulation = oracles.certified(strategy(), oracles.problem(size), oracle)
    assert simulation.passed(plan)
    assert not any(oracle(plan.kept - {layer}).passed for layer in plan.kept)


@pytest.mark.parametrize("strategy", [Guided, Ddmin])
@given(culprits(60))
@FEW
def test_pass_fail_alone_finds_the_culprits(
    strategy: type[Strategy], drawn: tuple[int, frozenset[int]]
) -> None:
    """A check without a figure leads to the same answer."""
    size, needed = drawn
    oracle = oracles.pass_fail(oracles.monotone(needed))
    plan, _ = oracles.certified(strategy(), oracles.problem(size, tolerance=None), oracle)
    assert plan.kept == needed


@given(any_oracle(8))
@settings(deadline=None, max_examples=40)
def test_exhaustive_finds_a_minimum(drawn: tuple[int, Oracle]) -> None:
    """Nothing smaller than what the exhaustive search keeps passes."""
    size, oracle = drawn
    plan, _ = oracles.simulate(Exhaustive(), oracles.problem(size), oracle)
    every = [frozenset(i for i in range(size) if mask >> i & 1) for mask in range(2**size)]
    assert len(plan) == min(len(kept) for kept in every if oracle(kept).passed)


@given(culprits(60))
@settings(deadline=None, max_examples=60)
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
@pytest.mark.parametrize("strategy", [Guided, Ddmin])
def test_clusters_are_kept_whole(
    strategy: type[Strategy], clusters: Sequence[Sequence[int]]
) -> None:
    """Blocks that only help when kept whole are found whole, and nothing else is."""
    plan, _ = oracles.certified(strategy(), oracles.problem(80), oracles.clustered(clusters))
    assert plan.kept == frozenset(layer for cluster in clusters for layer in cluster)


@pytest.mark.parametrize("strategy", [Guided, Ddmin])
def test_one_of_each_interacting_pair_is_kept(strategy: type[Strategy]) -> None:
    """Layers that are harmless alone and harmful together cost one layer a pair."""
    pairs = [(3, 50), (20, 21), (44, 7)]
    plan, _ = oracles.certified(strategy(), oracles.problem(64), oracles.interacting(pairs))
    assert len(plan) == len(pairs)
    assert all(len(plan.kept & set(pair)) == 1 for pair in pairs)
