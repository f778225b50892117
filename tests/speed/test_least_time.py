"""The least time of any plan, against brute force: a form that it rules out is never judged."""

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.fastest import Rivals
from precision_bisect.pipeline.fused_case import is_better
from precision_bisect.pipeline.plan_estimates import Estimates
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Fusion, Value
from precision_bisect.search.rounding_law import Law
from precision_bisect.search.speed.least_time import least_time
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Outcome, TrialStatus, Verdict

TIMES = st.floats(0, 1, allow_subnormal=False)


@st.composite
def graphs(draw: st.DrawFn) -> CostGraph:
    """Return up to six layers, any values between them, and kernels, some slower than pieces."""
    size = draw(st.integers(1, 6))
    layers = st.integers(0, size - 1)
    several = st.sets(layers, min_size=1, max_size=3).map(lambda ends: tuple(sorted(ends)))
    either = st.floats(-1, 1, allow_subnormal=False)
    value = st.builds(
        Value,
        producer=st.none() | layers,
        readers=several,
        read_high=st.booleans(),
        cast_ms=TIMES,
        made_low=st.booleans(),
        read_low=st.booleans(),
    )
    kernel = st.builds(Fusion, layers=several, low_ms=either, high_ms=either)
    return CostGraph(
        draw(st.lists(either, min_size=size, max_size=size)),
        draw(st.lists(value, max_size=6)),
        draw(st.lists(kernel, max_size=2)),
        draw(TIMES),
    )


def least_of_all(graph: CostGraph) -> float:
    """Return the least time of all plans, one by one."""
    layers = range(graph.size)
    plans = chain.from_iterable(combinations(layers, n) for n in range(graph.size + 1))
    return min(graph.time(kept) for kept in plans)


@examples(200)
@given(graph=graphs())
def test_no_plan_is_faster(graph: CostGraph) -> None:
    """A plan below it might have been the one to deploy, and was not tried."""
    assert least_time(graph) <= least_of_all(graph) + 1e-12


@examples(200)
@given(graph=graphs())
def test_some_plan_is_as_fast(graph: CostGraph) -> None:
    """A bound that is too low rules out nothing; it is exact where kernels are no slower."""
    if all(min(kernel.low_ms, kernel.high_ms) >= 0 for kernel in graph.fusions):
        assert least_of_all(graph) == pytest.approx(least_time(graph), rel=1e-8, abs=1e-8)


@examples(100)
@given(graph=graphs(), tf32=st.floats(0.2, 1), share=st.floats(0, 2), data=st.data())
def test_a_form_that_leads_is_better_than_any_plan_of_the_file(
    graph: CostGraph, tf32: float, share: float, data: st.DataObject
) -> None:
    """Else plans of the file are not judged, and one might have been deployed in its place."""
    layers, nothing = range(graph.size), Plan.of(())
    held = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.0)
    faster = replace(graph, high_ms=[tf32 * time for time in graph.high_ms])
    rivals = Rivals(
        names=[LayerName(f"layer{i}") for i in layers],
        limit=None,
        law=Law.of([0.0] * graph.size, nothing),
        answer=Plan.of(data.draw(st.sets(st.sampled_from(layers), min_size=1))),
        outcome=held,
        estimates=Estimates(
            plain=graph,
            full_batch=graph,
            tf32=faster,
            full_batch_tf32=faster,
            instead={"smallest": graph},
        ),
    )
    plan = Plan.of(data.draw(st.sets(st.sampled_from(layers), min_size=1)))
    case = data.draw(st.sampled_from(["", TF32]))
    of_file = rivals.deployable(plan, held, case=case).record
    form = replace(of_file, kept=[], time=share, tf32_time=share, fused=True)
    if graph.time(layers) > 0 and is_better(form, rivals.fastest_of_any, "fastest"):
        assert is_better(form, of_file, "fastest")
