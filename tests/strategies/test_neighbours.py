"""Neighbours of layers that must stay, and what they are worth to the search."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import nightly
from oracles import Simulation
from precision_bisect.plan import Plan
from precision_bisect.trial import Kind
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.neighbours import LIKELY, beside

SIZE = 300
LAYERS = st.frozensets(st.integers(0, 40))
PAIRS = (3, 4, 40, 41, 90, 91, 150, 151, 233, 234)


def test_pairs_say_that_one_neighbour_is_missing() -> None:
    """Of two open neighbours each is as likely the other half; a single one is twice as likely."""
    everything = range(100)
    both = beside([50], everything, PAIRS)
    assert both == {49: pytest.approx(5 / 12), 51: pytest.approx(5 / 12)}
    assert beside([50], [49], PAIRS) == {49: pytest.approx(5 / 6)}


def test_a_run_of_the_usual_length_has_ended() -> None:
    """Beside a whole pair nothing is likely, and beside a layer in the gap of two more so."""
    assert beside([50, 51], range(100), PAIRS) == {}
    between = beside([50, 52], range(100), PAIRS)
    assert between[51] > between[49] == between[53]


def test_single_layers_have_no_likely_neighbours() -> None:
    """What comes alone, as far as is known, tells of no neighbour; nor does nothing."""
    assert beside([50], range(100), [3, 40, 90]) == {}
    assert beside([50], range(100), []) == {}
    assert beside([], range(100), PAIRS) == {}


def test_what_was_found_tells_more_than_what_was_foreseen() -> None:
    """Two single layers where the emulator chose none outweigh its pairs; pairs confirm them."""
    single, pairs = [20, 24], [20, 21, 24, 25]
    assert beside([50], {49, 51}, PAIRS)
    assert beside([*single, 50], {49, 51}, PAIRS) == {}
    assert beside([*pairs, 50], {49}, PAIRS)[49] > beside([50], {49}, PAIRS)[49]
    assert beside([*PAIRS, 50], {49, 51}, PAIRS) == beside([50], {49, 51}, PAIRS)
    assert beside([*pairs, 50], {49}, [])[49] == pytest.approx(2 / 3)


@given(LAYERS, LAYERS, LAYERS)
def test_neighbours_are_undecided_and_beside_kept_layers(
    kept: frozenset[int], undecided: frozenset[int], chosen: frozenset[int]
) -> None:
    """Chances are chances, below one, and of layers that are neighbours."""
    for layer, chance in beside(kept, undecided - kept, chosen).items():
        assert layer in undecided - kept
        assert {layer - 1, layer + 1} & kept
        assert LIKELY <= chance < 1


def culprits(seed: int, *, pairs: bool) -> list[int]:
    """Return sixteen layers of `SIZE`: eight pairs of neighbours, or none that are neighbours."""
    chance = random.Random(seed)
    if not pairs:
        return [2 * place for place in chance.sample(range(SIZE // 2), 16)]
    firsts = [3 * place for place in chance.sample(range(SIZE // 3), 8)]
    return [layer for first in firsts for layer in (first, first + 1)]


@pytest.mark.parametrize("workers", [1, *nightly(4)])
def test_the_other_half_of_a_pair_is_looked_for_beside_it(workers: int) -> None:
    """Of the layers the emulator knows six: those that come in pairs take a sixth fewer builds."""
    asked = replace(oracles.problem(SIZE), builds=True, workers=workers)
    builds = dict.fromkeys((False, True), 0)
    for pairs in builds:
        for seed in range(3):
            found = culprits(seed, pairs=pairs)
            engine, emulator = oracles.monotone(found), oracles.monotone(found[:6])
            simulation = Simulation(SIZE, engine, emulator=emulator)
            assert simulation.run(Guided().search(asked)).kept == set(found)
            builds[pairs] += sum(t.proposal.kind is Kind.JUDGE for t in simulation.trials)
    assert builds[True] <= 5 / 6 * builds[False]


@pytest.mark.parametrize(("added", "told"), [(1.1, True), (None, True), (0.4, False)])
def test_rounding_errors_do_not_come_in_runs(added: float | None, told: bool) -> None:
    """Neighbours of a layer that adds most of the limit wait till last; of others they do not."""
    state = Demotion(
        order=tuple((layer,) for layer in range(SIZE)),
        beliefs=Beliefs.at_first([1.0 + i for i in range(SIZE)], [1.0] * SIZE, power=1.0),
        limit=oracles.TOLERANCE,
        power=1.0,
        plan=Plan.all_high(SIZE),
        error=0.0,
        pool=tuple(layer for layer in range(SIZE) if layer != 50),
        culprit=math.e,
        kept={50: None if added is None else added * oracles.TOLERANCE},
        chosen=frozenset(PAIRS),
    )
    arranged, near = state.arranged(state.pool)
    assert (arranged[-2:] == [49, 51]) is told
    assert (arranged == sorted(state.pool)) is not told
    assert (near.keys() == {49, 51}) is told
