"""Layers that act together by the emulator, and are decided on as one."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Oracle, Simulation
from precision_bisect.trial import Outcome
from precision_bisect_strategies.ranking import Sensitivity
from precision_bisect_strategies.units import Unit, together

FIVE = 5
NONE: frozenset[int] = frozenset()


def worst_of_blocks(errors: Sequence[float]) -> Oracle:
    """Let each block of five cost what its worst low layer does; blocks add up."""
    starts = range(0, len(errors), FIVE)

    def judge(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(
            sum(
                max((errors[i] for i in range(start, start + FIVE) if i not in kept), default=0.0)
                for start in starts
            )
        )

    return judge


def units_of(errors: Sequence[float], oracle: Oracle, watched: int) -> tuple[list[Unit], int]:
    """Return the units of layers of these errors alone, and how many forecasts that took."""
    size = len(errors)
    simulation = Simulation(size, oracle)
    asked = replace(oracles.problem(size), predicts=True)
    found = simulation.run(together(asked, Sensitivity([*errors], NONE), watched))
    return found, len(simulation.trials)


def test_a_layer_that_adds_too_little_to_tell_goes_with_those_on_both_sides() -> None:
    """What it adds beside the worst is a hundredth; the next but one says that all act as one."""
    errors = [0.01 + 0.001 * i for i in range(40)]
    errors[10:15] = [0.5, 0.004, 0.3, 0.001, 0.4]
    found, _ = units_of(errors, worst_of_blocks(errors), 4)
    assert tuple(range(10, 15)) in found


def test_layers_between_that_add_much_are_told_by_their_own_pairs() -> None:
    """Two blocks with one in between that adds by itself stay three units."""
    errors = [0.01 + 0.001 * i for i in range(40)]
    errors[10:15] = [0.3] * 5
    errors[15:20] = [0.0005] * 5
    errors[20:25] = [0.31] * 5
    found, _ = units_of(errors, worst_of_blocks(errors), 4)
    assert tuple(range(10, 15)) in found
    assert tuple(range(20, 25)) in found


@given(st.integers(0, 10_000), st.floats(0.0, 2.0))
@settings(max_examples=30)
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
