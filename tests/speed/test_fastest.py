"""Properties of the plan to deploy, on rows of layers whose errors the law tells or not."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

import oracles
from effort import examples
from precision_bisect.pipeline.fastest import (
    AS_FAST,
    FIRST_DRAW,
    JUDGED,
    ROOM,
    Estimates,
    Rivals,
    fastest,
)
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Fusion, Value
from precision_bisect.search.rounding_law import Law
from precision_bisect.trial import Outcome


@st.composite
def graphs(draw: st.DrawFn, least: int = 2) -> CostGraph:
    """Return a row of up to ten layers, some of which one kernel computes."""
    size = draw(st.integers(least, 10))
    costs = st.floats(0, 1, allow_subnormal=False)
    high = draw(st.lists(costs, min_size=size, max_size=size))
    cast = draw(st.lists(costs, min_size=size, max_size=size))
    values = [
        Value(producer=i, readers=(i + 1,) if i + 1 < size else (), read_high=False, cast_ms=ms)
        for i, ms in enumerate(cast)
    ]
    first = draw(st.integers(0, size - 2))
    last = draw(st.integers(first + 1, size - 1))
    fusion = Fusion(layers=tuple(range(first, last + 1)), low_ms=draw(costs), high_ms=draw(costs))
    return CostGraph(high, values, draw(st.sampled_from([(), (fusion,)])), 1.0)


@examples(30)
@given(data=st.data(), graph=graphs())
def test_a_gain_is_the_difference_of_two_costs(data: st.DataObject, graph: CostGraph) -> None:
    """What a change of a plan is said to gain is what the search adds up, broken kernels too."""
    plans = st.frozensets(st.integers(0, graph.size - 1))
    kept, instead = data.draw(plans), data.draw(plans)
    difference = graph.cost(kept) - graph.cost(instead)
    assert math.isclose(difference, graph.gain(kept, instead), abs_tol=1e-9)


@examples(30)
@given(
    data=st.data(),
    graph=graphs(),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    smallest=st.booleans(),
)
def test_it_passes_its_own_trial_and_is_no_slower(
    data: st.DataObject, graph: CostGraph, factor: float, smallest: bool
) -> None:
    """Also where the law is wrong: it was tried on draws of its own, in time, and has room."""
    size, sizes = graph.size, st.sampled_from([0.0, 0.1, 0.4, 0.7, 2.0, math.inf])
    errors = data.draw(st.lists(sizes, min_size=size, max_size=size))

    def oracle(kept: frozenset[int]) -> Outcome:
        low = (error for i, error in enumerate(errors) if i not in kept)
        return oracles.outcome(factor * math.hypot(*low))

    answer = Plan.of(data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1)))
    assume(oracle(answer.kept).passed)
    law = Law.of([min(error, 1e30) for error in errors], Plan.of(()))
    estimates = Estimates(plain=graph, tf32=graph, full_batch=graph, weights=graph)
    rivals = Rivals(law=law, answer=answer, outcome=oracle(answer.kept), estimates=estimates)
    simulation = oracles.Simulation(size, oracle)
    deploy = simulation.run(fastest(oracles.problem(size), rivals, copies=True, smallest=smallest))
    assert deploy is not None and deploy.outcome.passed
    trials = {trial.proposal.plan: trial for trial in simulation.trials}
    assert len(trials) <= JUDGED
    if deploy.plan != answer:
        assert trials[deploy.plan].outcome == deploy.outcome
        assert trials[deploy.plan].proposal.draw > FIRST_DRAW
    assert deploy.time <= (1 + AS_FAST) * deploy.answer_time + 1e-12
    if (deploy.outcome.error or 0.0) > ROOM * oracles.TOLERANCE:
        roomy = [
            plan
            for plan, trial in trials.items()
            if (trial.outcome.error or 0.0) <= ROOM * oracles.TOLERANCE
        ]
        assert all(graph.time(plan.kept) > graph.time(deploy.plan.kept) for plan in roomy)
