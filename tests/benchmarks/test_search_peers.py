"""The adapters of other people's searches do what those do, on cases small enough to follow."""

from typing import Literal

import numpy as np
import pytest
from search_algorithms import ALGORITHMS
from search_drive import Bench, Judge, blind, outcome, problem
from search_oracles import Mask
from search_peers import (
    one_at_a_time,
    onnxconverter,
    polygraphy,
    quickxplain_by_singles,
    ranked_prefix,
)

from precision_bisect.plan import Plan
from precision_bisect.trial import Kind, Outcome


def needing(*culprits: int) -> Judge:
    """Return the judge of plans that pass exactly when all culprits are kept."""

    def judge(low: Mask, kind: Kind) -> Outcome:
        assert kind is Kind.JUDGE
        return outcome(float("inf") if low[list(culprits)].any() else 0.0)

    return judge


@pytest.mark.parametrize(
    ("direction", "kept", "sizes"),
    [("forward", range(6), [4, 6, 5]), ("reverse", range(5, 8), [4, 2, 3])],
)
def test_polygraphy_bisects_to_the_shortest_end(
    direction: Literal["forward", "reverse"], kept: range, sizes: list[int]
) -> None:
    """Its bisection of 8 layers asks for the halves in turn, all layers being known already."""
    bench = Bench(judge=needing(5), size=8)
    plan = bench.run(polygraphy(8, "bisect", direction))
    assert Plan.of(kept) == plan
    assert sizes == [call.kept for call in bench.calls]


def test_polygraphy_walks_one_by_one() -> None:
    """Its linear mode keeps one layer more at a time until a build passes."""
    bench = Bench(judge=needing(5), size=8)
    assert Plan.of(range(6)) == bench.run(polygraphy(8, "linear", "forward"))
    assert [1, 2, 3, 4, 5, 6] == [call.kept for call in bench.calls]


def test_polygraphy_ends_with_everything_where_nothing_less_passes() -> None:
    """Where both end layers are needed, its answer is to keep all."""
    modes: tuple[Literal["bisect", "linear"], ...] = ("bisect", "linear")
    for mode in modes:
        bench = Bench(judge=needing(0, 7), size=8)
        assert Plan.of(range(8)) == bench.run(polygraphy(8, mode, "forward"))


def test_onnxconverter_halves_the_largest_segment() -> None:
    """It halves the largest segment that failed; one culprit of 4 takes 2 failures, 2 passes."""
    pytest.importorskip("onnxconverter_common", reason="dependency group benchmarks")
    bench = Bench(judge=needing(1), size=4)
    assert Plan.of((1,)) == bench.run(onnxconverter(4))
    # The halves: (0, 1) low fails, (2, 3) low passes; then 0 and 1 on top of (2, 3) low.
    assert [2, 2, 1] == [call.kept for call in bench.calls]
    assert [False, True, True] == [call.passed for call in bench.calls]


def test_one_at_a_time_builds_every_layer_and_bisects() -> None:
    """It takes a build per layer before the bisection of the ranking finds the culprits."""
    bench = Bench(judge=needing(2, 17), size=20)
    assert Plan.of((2, 17)) == bench.run(one_at_a_time(20))
    assert [19] * 20 == [call.kept for call in bench.calls][:20]
    assert 20 + 4 >= len(bench.calls)


def test_a_ranked_prefix_ends_at_the_last_culprit() -> None:
    """The emulator's order is bisected; what it ranks before the last culprit stays."""
    forecast = np.array([4.0, 5.0, 3.0, 2.0, 1.0, 6.0])

    def judge(low: Mask, kind: Kind) -> Outcome:
        if kind is Kind.PREDICT:
            return outcome(float(forecast[low].sum()))
        return outcome(2.0 if low[[0, 5]].any() else 0.0)

    bench = Bench(judge=judge, size=6)
    assert Plan.of((5, 1, 0)) == bench.run(ranked_prefix(6))
    assert (6, 3) == (bench.forecasts, len(bench.calls))


@pytest.mark.parametrize("culprits", [(0, 1), (3, 12), (14, 15)])
def test_quickxplain_by_singles_finds_what_is_needed(culprits: tuple[int, int]) -> None:
    """It ends with the culprits, sooner when the emulator ranks them first."""
    calls = []
    for knows in (True, False):

        def judge(low: Mask, kind: Kind, knows: bool = knows) -> Outcome:
            if kind is Kind.PREDICT:
                return outcome(float(low[list(culprits)].sum()) if knows else 1.0)
            return outcome(2.0 if low[list(culprits)].any() else 0.0)

        bench = Bench(judge=judge, size=16)
        assert Plan.of(culprits) == bench.run(quickxplain_by_singles(16))
        calls.append(len(bench.calls))
    assert 5 == calls[0] <= calls[1]


def test_quickxplain_without_an_emulator_prefers_network_order() -> None:
    """Blind, our QuickXplain keeps the first of two layers that can stand in for each other."""

    def judge(low: Mask, _: Kind) -> Outcome:
        return outcome(2.0 if low[[200, 900]].all() else 0.0)

    asked = problem(1000)
    bench = Bench(judge=blind(judge), size=1000)
    assert Plan.of((200,)) == bench.run(ALGORITHMS["unranked quickxplain"].start(asked))
