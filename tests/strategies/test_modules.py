"""Groups of layers by modules, and the search that goes down them."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import oracles
from oracles import Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem
from precision_bisect_strategies.hierarchical import Hierarchical
from precision_bisect_strategies.modules import BLOCKS, levels


def test_modules_become_levels() -> None:
    """Each level opens the modules of the one before; layers beside them are groups, too."""
    modules = ["a.x", "a.x", "a", "b", "a.y"]
    assert [
        [(0, 1, 2, 4), (3,)],
        [(0, 1), (2,), (3,), (4,)],
        [(0,), (1,), (2,), (3,), (4,)],
    ] == levels(in_modules(modules))


def test_layers_without_a_module_form_blocks() -> None:
    """Layers that no module holds give blocks of consecutive layers, large ones first."""
    large, small = BLOCKS
    found = levels(replace(in_modules([""] * (large + 1)), modules=()))
    assert [large, 1] == [len(group) for group in found[0]]
    assert [small] * (large // small) + [1] == [len(group) for group in found[1]]
    assert all(len(group) == 1 for group in found[2])


@given(st.lists(st.sampled_from(["", "/", "/a", "/a/b", "a.b.c", "a.b", "//b"]), min_size=1))
def test_levels_partition_the_layers(modules: list[str]) -> None:
    """Every level holds every layer once, refines the one before, and the last has single ones."""
    found = levels(in_modules(modules))
    layers = list(range(len(modules)))
    before: list[tuple[int, ...]] = [tuple(layers)]
    for level in found:
        assert layers == sorted(layer for group in level for layer in group)
        assert all(any(set(group) <= set(larger) for larger in before) for group in level)
        before = level
    assert [(layer,) for layer in layers] == found[-1]


def test_few_modules_are_found_in_few_trials() -> None:
    """20 culprits in 4 of 100 modules cost at most 0.4 times what they cost anywhere."""
    asked = in_modules([f"stage.{i // 100}.block.{i // 5}" for i in range(500)])
    gathered = spread = 0
    for seed in range(4):
        rng = random.Random(seed)
        blocks = rng.sample(range(0, 500, 5), 4)
        together = [start + offset for start in blocks for offset in range(5)]
        for culprits in (together, rng.sample(range(500), 20)):
            simulation = Simulation(500, oracles.monotone(culprits), emulator=useless(seed))
            plan = simulation.run(Hierarchical().search(asked))
            assert Plan.of(culprits) == plan
            if culprits is together:
                gathered += simulation.count()
            else:
                spread += simulation.count()
    assert gathered <= 0.4 * spread


def test_what_the_emulator_forecasts_is_dropped_at_once() -> None:
    """With a right emulator one module of 50 costs little more than its layers."""
    asked = in_modules([f"/block.{i // 10}" for i in range(500)])
    simulation = Simulation(500, oracles.monotone([123, 127]))
    assert Plan.of((123, 127)) == simulation.run(Hierarchical().search(asked))
    assert simulation.count() <= 5


def in_modules(modules: list[str]) -> Problem:
    """Return the problem of layers in these modules."""
    return replace(oracles.problem(len(modules)), modules=modules)


def useless(seed: int) -> oracles.Oracle:
    """Return an emulator that says anything."""
    return lambda kept: oracles.outcome(random.Random(f"{seed}{sorted(kept)}").random())
