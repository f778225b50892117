"""How many layers are ranked one by one: those that matter, as many as there is time for."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

import oracles
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.precision_curve import Curve, sweep
from precision_bisect.search.sensitivity import BLOCK, Sensitivity, by_sensitivity, rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal
from precision_bisect_strategies.guided import Guided

SIZE = 128
BLOCKS = SIZE // BLOCK


def ranked(
    asked: Problem,
    seconds: float,
    opening: float = 0.0,
    left: list[int | None] | None = None,
    error: Callable[[Plan], float] = lambda _: 1.0,
) -> tuple[Sensitivity, list[Plan]]:
    """Rank layers, all alike by default; each forecast takes so many seconds, the first more.

    `left` gets what each says of how many are left.
    """
    search, plans = rank(asked), []
    batch = next(search)
    try:
        while True:
            plans += [proposal.plan for proposal in batch]
            if left is not None:
                left += [proposal.about_left for proposal in batch]
            took, opening = seconds + opening, 0.0
            outcomes = (oracles.outcome(error(proposal.plan)) for proposal in batch)
            batch = search.send(tuple(replace(outcome, wall_s=took) for outcome in outcomes))
    except StopIteration as end:
        return end.value, plans


@pytest.mark.parametrize(("limit", "singles"), [(math.inf, SIZE), (BLOCKS + 24.0, 24), (1.0, 0)])
def test_single_layers_are_ranked_while_there_is_time(limit: float, singles: int) -> None:
    """What blocks took tells how many more forecasts fit; whole blocks are looked into."""
    told, plans = ranked(replace(oracles.problem(SIZE), forecast_s=limit), 1.0)
    assert BLOCKS + singles == len(plans)
    assert SIZE - singles == len(told.shared)
    assert {BLOCK} >= {*told.shared.values()}


@pytest.mark.parametrize("limit", [math.inf, BLOCKS + 24.0])
def test_blocks_tell_of_the_single_layers_to_come(limit: float) -> None:
    """Else the time that is left grows once they begin: the first block alone tells nothing."""
    left: list[int | None] = []
    _, plans = ranked(replace(oracles.problem(SIZE), forecast_s=limit), 1.0, left=left)
    # Whole blocks are looked into, and parts of them are none before all are measured.
    near = [pytest.approx(len(plans) - number, abs=BLOCKS) for number in range(1, BLOCKS)]
    assert near == left[1:BLOCKS]
    assert [*range(len(plans) - BLOCKS, 0, -1)] == left[BLOCKS:]


def test_what_the_first_forecast_takes_longer_sets_no_pace() -> None:
    """It opens the emulator: that time is gone, and no other forecast takes it."""
    limited = replace(oracles.problem(SIZE), forecast_s=BLOCKS + 50.0 + 24.0)
    assert BLOCKS + 24 == len(ranked(limited, 1.0, opening=50.0)[1])


def test_forecasts_that_take_no_time_are_not_bounded() -> None:
    """A search that is replayed from outcomes without times asks the same as without a limit."""
    assert BLOCKS + SIZE == len(ranked(replace(oracles.problem(SIZE), forecast_s=1.0), 0.0)[1])


def test_a_layer_of_a_block_stands_for_its_part() -> None:
    """The root of the sum of the squares of what is shared is the block's error."""
    told, _ = ranked(replace(oracles.problem(SIZE), forecast_s=1.0), 1.0)
    assert math.hypot(*told.scores[:BLOCK]) == pytest.approx(1.0)


def test_layers_of_blocks_that_are_left_have_the_part_of_their_role() -> None:
    """Where one layer of each block matters, as those measured alone do, the others do not."""
    heavy = range(3, SIZE, BLOCK)

    def error(plan: Plan) -> float:
        return math.hypot(
            *(1.0 if i in heavy else 0.01 for i in range(SIZE) if i not in plan.kept)
        )

    asked = replace(oracles.problem(SIZE), forecast_s=BLOCKS + 24.0)
    alike = replace(asked, roles=lambda: [i % BLOCK for i in range(SIZE)])
    orders = [by_sensitivity(ranked(one, 1.0, error=error)[0].scores) for one in (asked, alike)]
    first, every = (len({*order[:BLOCKS]}.intersection(heavy)) for order in orders)
    assert first < BLOCKS / 2
    assert every == BLOCKS
    block = ranked(alike, 1.0, error=error)[0].scores[-BLOCK:]
    assert pytest.approx(math.hypot(1.0, *[0.01] * (BLOCK - 1))) == math.hypot(*block)


def test_the_last_layers_are_ranked_too() -> None:
    """The last block may be smaller than the others."""
    told, plans = ranked(oracles.problem(SIZE + 2), 1.0)
    assert BLOCKS + 1 + SIZE + 2 == len(plans)
    assert not told.shared


@pytest.mark.parametrize("size", [40, SIZE])
def test_layers_of_one_kernel_are_ranked_together(size: int) -> None:
    """A part of a kernel says nothing of the whole, and each has its share of that error."""
    kernel, core = (6, 7, 8, 11), (7, 8)
    told, plans = ranked(replace(oracles.problem(size), together=[kernel, core]), 1.0)
    low = [frozenset(range(size)) - plan.kept for plan in plans]
    assert frozenset(kernel) in low
    assert all(not group & {*kernel} or group >= {*kernel} for group in low)
    assert [0.5] * len(kernel) == [told.scores[layer] for layer in kernel]
    assert {*kernel} == {*told.shared}


def test_a_ranking_takes_no_longer_than_the_builds_that_it_saves() -> None:
    """Forecasts that are dearer than builds are for blocks alone, in a search and after it."""
    asked = replace(oracles.problem(SIZE), builds=True)
    for seconds, count in ((0.001, BLOCKS + SIZE), (100.0, BLOCKS)):
        assert count == forecasts(flow(asked, Guided(), Course(curve=True)), seconds)
        assert count == forecasts(sweep(Curve(problem=asked, copies=False)), seconds)


def forecasts(search: Search[object], seconds: float) -> int:
    """Return how many forecasts rank layers where each takes so many seconds, a build one."""
    batch, count = next(search), 0
    while all(proposal.phase in (Phase.PREFLIGHT, Phase.RANKING) for proposal in batch):
        ranks = batch[0].kind is Kind.PREDICT
        count += len(batch) if ranks else 0
        told = [_told(proposal, seconds if ranks else 1.0) for proposal in batch]
        batch = search.send(tuple(told))
    return count


def _told(proposal: Proposal, seconds: float) -> Outcome:
    """Every layer adds as much, too much together."""
    error = 0.9 * oracles.TOLERANCE * (SIZE - len(proposal.plan))
    return replace(oracles.outcome(error), wall_s=seconds)
