"""Layers that act together by the emulator, and are decided on as one."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from oracles import Oracle, Simulation
from precision_bisect.search.sensitivity import Sensitivity
from precision_bisect.trial import Outcome
from precision_bisect_strategies.beginning import Unit, in_units

FIVE = 5
NONE: dict[int, int] = {}


def worst_of(groups: Iterable[Sequence[int]], errors: Sequence[float]) -> Oracle:
    """Let each group cost what its worst low layer does; groups add up."""
    members = [tuple(group) for group in groups]

    def judge(kept: frozenset[int]) -> Outcome:
        low = (max((errors[i] for i in each if i not in kept), default=0.0) for each in members)
        return oracles.outcome(sum(low))

    return judge


def worst_of_blocks(errors: Sequence[float]) -> Oracle:
    """Let each block of five cost what its worst low layer does; blocks add up."""
    starts = range(0, len(errors), FIVE)
    return worst_of((range(start, start + FIVE) for start in starts), errors)


def units_of(errors: Sequence[float], oracle: Oracle, watched: int) -> tuple[list[Unit], int]:
    """Return the units of layers of these errors alone, and how many forecasts that took."""
    size = len(errors)
    simulation = Simulation(size, oracle)
    asked = replace(oracles.problem(size), builds=True)
    found = simulation.run(in_units(asked, Sensitivity([*errors], NONE), watched))
    return found, len(simulation.trials)


def test_a_layer_that_adds_too_little_to_tell_goes_with_those_on_both_sides() -> None:
    """What it adds beside the worst is a hundredth; the next but one says that all act as one."""
    errors = [0.01 + 0.001 * i for i in range(40)]
    errors[10:15] = [0.5, 0.004, 0.3, 0.001, 0.4]
    found, _ = units_of(errors, worst_of_blocks(errors), 4)
    assert tuple(range(10, 15)) in found


def test_a_layer_between_that_adds_by_itself_is_not_joined() -> None:
    """Its own pairs with those beside it have told that; that these act together says nothing."""
    errors = [0.01 + 0.001 * i for i in range(40)]
    errors[10:15] = [0.3, 0.31, 0.2, 0.32, 0.3]
    blocks = [[*range(start, start + FIVE)] for start in range(0, 40, FIVE)]
    blocks[2] = [10, 11, 13, 14]
    found, _ = units_of(errors, worst_of([*blocks, [12]], errors), 4)
    assert [unit for unit in found if 10 <= unit[0] < 15] == [(10, 11), (12,), (13, 14)]


def test_where_neighbours_seldom_act_together_pairs_apart_are_not_believed() -> None:
    """Errors that partly cancel out look as if they did, here and there."""
    size = 80
    errors = [0.1 + 0.001 * (17 * i % size) for i in range(size)]
    errors[30:33] = [0.3, 0.001, 0.31]
    alone = [[i] for i in range(size) if i not in (10, 11, 30, 32)]
    found, _ = units_of(errors, worst_of([*alone, [10, 11], [30, 32]], errors), size)
    assert [unit for unit in found if len(unit) > 1] == [(10, 11)]


@given(st.integers(0, 10_000), st.floats(0.0, 2.0))
@examples(15)
def test_units_never_cross_blocks(seed: int, spread: float) -> None:
    """However unlike the layers of a block are alone, units are of one block each, in order."""
    rng = random.Random(seed)
    errors = [rng.lognormvariate(0.0, spread) / 100 for _ in range(60)]
    found, _ = units_of(errors, worst_of_blocks(errors), 24)
    assert [layer for unit in found for layer in unit] == list(range(60))
    assert all(unit[0] // FIVE == unit[-1] // FIVE for unit in found)


def test_where_errors_add_up_few_forecasts_tell_so() -> None:
    """No pair acts together: only those of the most sensitive layers are looked at."""
    rng = random.Random(0)
    errors = [rng.lognormvariate(0.0, 1.0) / 100 for _ in range(300)]
    found, forecasts = units_of(errors, oracles.additive(errors), 24)
    assert found == [(layer,) for layer in range(300)]
    assert forecasts <= 2 * 24
