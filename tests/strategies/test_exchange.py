"""Fewer layers in the place of a kept unit of several."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

import oracles
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem
from precision_bisect.trial import Outcome
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion, Lowered
from precision_bisect_strategies.exchanging import PATIENCE, exchange
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.units import Unit

LIMIT = oracles.TOLERANCE
BLOCK = tuple(range(10, 20))
SINGLES: list[Unit] = [(layer,) for layer in range(10)]


def state(
    order: Sequence[Unit],
    kept: Mapping[int, float],
    lowered: list[Lowered],
    error: float,
    workers: int = 1,
) -> Demotion:
    """Return a state whose ranking says that the last units add most, a tenth more each."""
    return Demotion(
        order=order,
        beliefs=Beliefs(
            [0.02 * 1.1**i for i in range(len(order))],
            [float(len(unit)) for unit in order],
            room=LIMIT,
            expected=3,
        ),
        limit=LIMIT,
        plan=Plan.of(layer for i in kept for layer in order[i]),
        error=error,
        low_error=2.0,
        suspects=[],
        workers=workers,
        kept=dict(kept),
        lowered=lowered,
    )


def adding(errors: Mapping[Unit, float], rest: float = 0.0) -> Oracle:
    """Let each unit add its error once any of it is low; all plans add the `rest`."""

    def judge(kept: frozenset[int]) -> Outcome:
        low = (error for unit, error in errors.items() if not kept.issuperset(unit))
        return oracles.outcome(rest + sum(low))

    return judge


def exchanged(before: Demotion, oracle: Oracle) -> list[frozenset[int]]:
    """Run the exchanges; return what was kept in each build."""
    simulation = Simulation(20, oracle)
    simulation.run(exchange(before))
    return [trial.proposal.plan.kept for trial in simulation.trials]


@pytest.mark.parametrize("workers", [1, 4])
def test_one_after_the_other_is_tried_until_one_adds_enough(workers: int) -> None:
    """The likeliest ones do not; what they were measured to add is known afterwards."""
    errors: dict[Unit, float] = {(i,): 0.02 for i in range(10)} | {(7,): 0.32, BLOCK: 0.4}
    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9, workers)
    assert exchanged(before, adding(errors, 0.4)) == [{9}, {8}, {7}]
    assert before.plan.kept == {7}
    assert set(before.kept) == {7}
    assert before.error == pytest.approx(0.98)


def test_in_vain_they_end_and_what_layers_add_is_known() -> None:
    """Nothing adds enough: the unit stays, and the group is what is left without those tried."""
    errors: dict[Unit, float] = {(i,): 0.05 for i in range(10)} | {BLOCK: 0.4}
    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9)
    builds = exchanged(before, adding(errors, 0.4))
    assert builds == [{9}, {8}, {7}]
    assert len(builds) == PATIENCE
    assert before.plan.kept == {*BLOCK}
    lowered = {tuple(group): total for group, total in before.lowered}
    single = {(9,): 0.05, (8,): 0.05, (7,): 0.05, tuple(range(7)): 0.35}
    assert lowered == pytest.approx(single)


def test_one_that_cannot_be_measured_is_not_the_last() -> None:
    """Keeping the likeliest does not prevent an overflow: the next is tried."""

    def judge(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(0.9 if 8 in kept else math.inf)

    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9)
    assert exchanged(before, judge) == [{9}, {8}]
    assert before.plan.kept == {8}


def test_several_that_were_measured_to_add_enough_take_its_place() -> None:
    """Neither of two does alone; together they surely do."""
    errors: dict[Unit, float] = {(0,): 0.2, (1,): 0.2, BLOCK: 0.4}
    before = state([(0,), (1,), BLOCK], {2: 0.4}, [([0], 0.2), ([1], 0.2)], 0.95)
    assert exchanged(before, adding(errors, 0.55)) == [{0, 1}]
    assert before.plan.kept == {0, 1}


def test_the_room_that_an_exchange_makes_is_used() -> None:
    """One layer lets a unit go, and holds back so much that another unit fits, too."""
    small = (7, 8, 9)
    errors: dict[Unit, float] = {(0,): 0.1, (1,): 0.6, small: 0.1, BLOCK: 0.3}
    before = state([(0,), (1,), small, BLOCK], {2: 0.1, 3: 0.3}, [([0], 0.1), ([1], 0.6)], 0.95)
    assert exchanged(before, adding(errors, 0.25)) == [{1, *small}, {1}]
    assert before.plan.kept == {1}


@pytest.mark.parametrize("low", [[], [(0, 1, 2), (3, 4, 5)]])
def test_where_only_larger_units_are_low_there_is_none(low: Collection[Unit]) -> None:
    """A unit of two stays; so does one that should fit, once dropping it has failed."""
    order: list[Unit] = [*low, (6, 7), (8, 9)]
    first = len(low)
    groups: list[Lowered] = [([i], 0.4) for i in range(first)]
    before = state(order, {first: 0.3, first + 1: 0.01}, groups, 0.95)
    assert exchanged(before, oracles.monotone([6, 7, 8, 9])) == []
    assert before.plan.kept == {6, 7, 8, 9}


def builds(size: int) -> Problem:
    """Return a problem whose trials are builds."""
    return replace(oracles.problem(size), predicts=True)


def blocks(errors: dict[range, float], rest: float, size: int) -> Oracle:
    """Let each block cost its error once any of it is low; the other layers share `rest`."""
    inside = {layer for block in errors for layer in block}
    each = rest / (size - len(inside))

    def judge(kept: frozenset[int]) -> Outcome:
        low = set(range(size)) - kept
        found = sum(error for block, error in errors.items() if not low.isdisjoint(block))
        return oracles.outcome(found + each * len(low - inside))

    return judge


@pytest.mark.parametrize(("alone", "kept"), [(0.3, {30}), (0.13, set(range(10, 15)))])
def test_one_layer_takes_the_place_of_a_block(alone: float, kept: set[int]) -> None:
    """A block that the emulator prefers gives way to one layer that holds back enough, if so."""
    size = 40
    block, layer = range(10, 15), range(30, 31)
    oracle = blocks({block: 0.45, layer: alone}, 1.2 - 0.45 - alone, size)
    emulator = blocks({block: 0.6, layer: 0.18}, 0.42, size)
    simulation = Simulation(size, oracle, emulator=emulator)
    assert simulation.run(Guided().search(builds(size))).kept == kept
    assert simulation.count() <= 4


@pytest.mark.parametrize("workers", [1, 4])
def test_a_layer_tried_in_vain_in_the_place_of_a_block_is_not_the_last(workers: int) -> None:
    """The likeliest layer does not hold back enough; the next one does."""
    size = 40
    block, likely, unlikely = range(10, 15), range(30, 31), range(35, 36)
    oracle = blocks({block: 0.45, likely: 0.15, unlikely: 0.3}, 0.3, size)
    emulator = blocks({block: 0.6, likely: 0.1, unlikely: 0.09}, 0.41, size)
    simulation = Simulation(size, oracle, emulator=emulator)
    asked = replace(builds(size), workers=workers)
    assert simulation.run(Guided().search(asked)).kept == set(unlikely)
    reasons = [trial.proposal.reason for trial in simulation.trials]
    assert reasons.count("keep 1 in the place of 5") == 2
    assert simulation.count() <= 5
