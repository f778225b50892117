"""The bench counts what a search asks for."""

from collections.abc import Sequence

import numpy as np
import pytest
from search_drive import (
    Bench,
    Call,
    Certificate,
    OutOfCalls,
    certified,
    outcome,
    problem,
    simulated,
)
from search_oracles import Mask, instance

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, Proposal

SIZE = 8


def needs_three(low: Mask, _: Kind) -> Outcome:
    """Pass plans that keep the layers 0, 1 and 2."""
    return outcome(2.0 if low[:3].any() else 0.0)


def asking(*batches: Sequence[tuple[tuple[int, ...], Kind]]) -> Search[Plan]:
    """Ask for some batches and end with all-high."""
    for batch in batches:
        yield tuple(Proposal(plan=Plan.of(kept), kind=kind) for kept, kind in batch)
    return Plan.all_high(SIZE)


def test_distinct_builds_count_once_and_forecasts_apart() -> None:
    """Builds count once each, those of the preflight never, rebuilds again, forecasts apart."""
    bench = Bench(judge=needs_three, size=SIZE)
    judge, again, forecast = Kind.JUDGE, Kind.REBUILD, Kind.PREDICT
    some = (0, 1, 2)
    bench.run(
        asking(
            [((), judge), (tuple(range(SIZE)), judge)],
            [(some, judge), (some, judge), (some, again)],
            [(some, forecast), ((1,), forecast)],
            [(some, judge), ((1,), judge)],
        )
    )
    assert [Call(kept=3, passed=True)] * 2 + [Call(kept=1, passed=False)] == bench.calls
    assert [2, 1] == bench.batches
    assert 2 == bench.forecasts


def test_rounds_are_batches_over_workers() -> None:
    """A batch of five new builds takes three rounds of two workers."""
    bench = Bench(judge=needs_three, size=SIZE)
    bench.run(asking([((i,), Kind.JUDGE) for i in range(5)], [((5, 6), Kind.JUDGE)]))
    assert [6, 4, 2] == [bench.rounds(workers) for workers in (1, 2, 16)]


def test_speculation_is_credited_with_the_best_bet() -> None:
    """One by one, eight failures and a pass are three rounds of four that bet on failures."""
    bench = Bench(judge=needs_three, size=SIZE)
    failing = [[((i,), Kind.JUDGE)] for i in range(SIZE)]
    bench.run(asking(*failing, [((0, 1, 2), Kind.JUDGE)]))
    assert 9 == bench.rounds(4)
    assert 3 == bench.speculated(4)
    assert 9 == bench.speculated(1)


def test_a_search_is_cut_off_at_its_last_build() -> None:
    """The build after the last that is given ends the search."""
    bench = Bench(judge=needs_three, size=SIZE, most=2)
    with pytest.raises(OutOfCalls):
        bench.run(asking(*[[((i,), Kind.JUDGE)] for i in range(3)]))
    assert 2 == len(bench.calls)


@pytest.mark.parametrize(("mode", "drops"), [("full", 14), ("forecasts", 6)])
def test_certificates_build_what_must_be_built(mode: Certificate, drops: int) -> None:
    """In full each layer is dropped; where forecasts are right a sample of the layers is."""
    answer = Plan.of(range(14))
    bench = Bench(judge=lambda low, _: outcome(2.0 if low[:14].any() else 0.0), size=16)

    def start(_: Problem) -> Search[Plan]:
        yield (Proposal(plan=answer),)
        return answer

    assert answer == certified(start, bench, problem(16), mode)
    assert 1 + drops == len(bench.calls)


def test_a_rebuild_draws_its_noise_afresh() -> None:
    """A rebuild of a noisy plan has another error, a second look at the same build has not."""
    judge = simulated(instance("D", 100, 5, 0.8, 0))
    low = np.arange(100) < 50
    first, second = judge(low, Kind.JUDGE), judge(low, Kind.REBUILD)
    assert first.error != second.error
    assert first == judge(low, Kind.JUDGE)
