"""The cheapest plan that the law of rounding allows, against brute force on small graphs."""

import math
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Value
from precision_bisect.search.speed.cheapest import cheapest, with_room

NOTHING = Plan.of(())


def chain_of(high_ms: list[float], cast_ms: list[float]) -> CostGraph:
    """Return layers in a row, between an input and an output that are FP32."""
    size = len(high_ms)
    values = [Value(producer=None, readers=(0,), read_high=False, cast_ms=cast_ms[0])]
    values += [
        Value(
            producer=i,
            readers=(i + 1,) if i + 1 < size else (),
            read_high=i + 1 == size,
            cast_ms=cast_ms[i + 1],
        )
        for i in range(size)
    ]
    return CostGraph(high_ms, values)


def allowed(errors: list[float], limit: float, kept: frozenset[int]) -> bool:
    """Tell whether the law allows a plan."""
    return math.hypot(*[e for i, e in enumerate(errors) if i not in kept]) <= limit * (1 + 1e-9)


@st.composite
def problems(draw: st.DrawFn) -> tuple[CostGraph, list[float]]:
    """Return a row of up to eight layers, and what each adds alone."""
    size = draw(st.integers(1, 8))
    costs = st.floats(0, 1, allow_subnormal=False)
    high = draw(st.lists(costs, min_size=size, max_size=size))
    cast = draw(st.lists(costs, min_size=size + 1, max_size=size + 1))
    errors = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, math.inf])
    return chain_of(high, cast), draw(st.lists(errors, min_size=size, max_size=size))


@examples(30)
@given(problem=problems(), limit=st.sampled_from([0.0, 0.2, 0.6, 1.5]), seed=st.integers(0, 9))
def test_nothing_cheaper_is_allowed(
    problem: tuple[CostGraph, list[float]], limit: float, seed: int
) -> None:
    """The law allows the plan, and no plan that it allows costs less."""
    graph, errors = problem
    (found, *_) = cheapest(graph, errors, limit, [NOTHING], seed=seed)
    assert allowed(errors, limit, found.kept)
    layers = range(graph.size)
    plans = chain.from_iterable(combinations(layers, n) for n in range(graph.size + 1))
    costs = [graph.cost(kept) for kept in plans if allowed(errors, limit, frozenset(kept))]
    assert graph.cost(found.kept) <= min(costs) + 1e-9


def test_an_island_goes_as_a_whole() -> None:
    """Closing a gap between two kept layers costs less than the Casts around it."""
    graph = chain_of([0.1] * 5, [1.0] * 6)
    errors = [1.0, 0.0, 0.0, 0.0, 1.0]
    assert Plan.all_high(5) == cheapest(graph, errors, 0.5, [NOTHING])[0]


@pytest.mark.parametrize("seed", range(10))
def test_an_island_goes_for_another_layer(seed: int) -> None:
    """The limit has no room for both: three layers are kept for one that costs more, at once."""
    high = [0.0, 0.125, 0.25, 0.25, 1.0, 0.25, 0.0, 0.75]
    graph = chain_of(high, [0.0, 0.125, 0.25, 0.25, 0.0, 0.0, 0.375, 1.0, 0.625])
    errors = [0.0, 0.0, 0.0, 1.0, 0.0, 0.1, 0.5, 1.0]
    assert Plan.of((5, 6, 7)) == cheapest(graph, errors, 1.5, [NOTHING], seed=seed)[0]


def test_it_is_the_same_each_time() -> None:
    """A run that is resumed goes the same way."""
    graph = chain_of([0.01 * i for i in range(40)], [0.03] * 41)
    errors = [0.1 * (i % 7) for i in range(40)]
    starts = [NOTHING, Plan.all_high(40)]
    first, again = (cheapest(graph, errors, 1.0, starts, seed=3) for _ in range(2))
    assert first == again


@examples(30)
@given(problem=problems(), data=st.data(), most_ms=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_room_costs_no_more_than_is_allowed(
    problem: tuple[CostGraph, list[float]], data: st.DataObject, most_ms: float
) -> None:
    """Layers are only added, within the time; what would save error and fits is left by none."""
    graph, errors = problem
    plan = Plan.of(data.draw(st.frozensets(st.integers(0, graph.size - 1))))
    wider = with_room(graph, errors, plan, most_ms)
    assert plan.kept <= wider.kept
    spent = graph.cost(wider.kept) - graph.cost(plan.kept)
    assert spent <= most_ms + 1e-9
    if most_ms == 2.0:
        generous = with_room(graph, errors, plan, math.inf)
        assert all(i in generous.kept for i, error in enumerate(errors) if 0.1 < error < math.inf)
