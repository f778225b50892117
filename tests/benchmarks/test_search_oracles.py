"""The simulated networks have the optimum, the ends and the correlation that they claim."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_oracles import STRUCTURES, Floats, Instance, Network, instance

from effort import examples

SIZE = 10
KEPT = {"A": 3, "B": 3, "C": 5, "CL": 5, "D": 3, "E": 3}


def error(built: Instance, kept: tuple[int, ...]) -> float:
    """Return the error without noise of the plan that keeps some layers."""
    low = np.ones(built.size, dtype=bool)
    low[list(kept)] = False
    return built.exact.error(low)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_the_smallest_set_that_passes(structure: str, seed: int) -> None:
    """Some set of the optimum's size passes, none of the smaller ones does."""
    built = instance(structure, SIZE, KEPT[structure], 0.8, seed)
    passing = [
        len(kept)
        for size in range(built.optimum + 1)
        for kept in combinations(range(SIZE), size)
        if error(built, kept) <= 1.0
    ]
    assert {built.optimum} == set(passing)


@pytest.mark.parametrize("structure", ["C", "CL"])
@pytest.mark.parametrize("seed", range(3))
def test_one_layer_of_clusters_stands_alone(structure: str, seed: int) -> None:
    """With an optimum of one layer, clusters or not, exactly one single layer passes."""
    built = instance(structure, SIZE, 1, 0.8, seed)
    assert 1 == sum(error(built, (layer,)) <= 1.0 for layer in range(SIZE))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kept", [1, 20])
def test_both_ends_are_as_the_preflight_found(structure: str, kept: int) -> None:
    """Nothing low passes without any error, everything low fails, for the noisy builds too."""
    built = instance(structure, 100, kept, 0.5, 0)
    assert 0.0 == built.truth.error(np.zeros(100, dtype=bool))
    assert built.truth.error(np.ones(100, dtype=bool)) > 1.0


def single_errors(network: Network, size: int, step: int = 1) -> Floats:
    """Return the error of every so many layers alone low."""
    layers = np.arange(size)
    return np.array([network.error(layers == layer) for layer in layers[::step]])


def ranks(values: Floats) -> Floats:
    """Return each value's place in ascending order."""
    return np.argsort(np.argsort(values)).astype(float)


@pytest.mark.parametrize("structure", ["B", "C", "CL"])
@pytest.mark.parametrize("rho", [1.0, 0.98, 0.8, 0.5, 0.0])
def test_single_layers_correlate_as_asked(structure: str, rho: float) -> None:
    """The ranks of the emulator's single errors correlate with the true ones as was asked for."""
    built = instance(structure, 5000, 20, rho, 1)
    # One layer of each cluster: the others have the same error.
    true, seen = (single_errors(network, 5000, 5) for network in (built.exact, built.emulator))
    found = np.corrcoef(ranks(true), ranks(seen))[0, 1]
    assert rho == pytest.approx(found, abs=0.06)


@examples(20)
@given(data=st.data(), structure=st.sampled_from(["A", "B", "C", "CL"]))
def test_keeping_more_never_hurts_where_that_is_claimed(
    data: st.DataObject, structure: str
) -> None:
    """Keeping one more layer never raises the error, nor the emulator's."""
    built = instance(structure, 20, 5, 0.8, data.draw(st.integers(0, 50)))
    low = np.array(data.draw(st.lists(st.booleans(), min_size=20, max_size=20)))
    more = low.copy()
    more[data.draw(st.integers(0, 19))] = False
    for network in (built.truth, built.emulator):
        assert network.error(more) <= network.error(low)


def test_builds_differ_by_the_noise_and_are_reproducible() -> None:
    """Builds of one plan differ by about 10%, and the same build is always the same."""
    built = instance("D", 500, 20, 0.8, 0)
    rng = np.random.default_rng(0)
    off = []
    for low in rng.random((200, 500)) < 0.5:
        exact = built.exact.error(low)
        assert built.truth.error(low) == built.truth.error(low)
        off += [np.log(built.truth.error(low, draw) / exact) for draw in (0, 1)]
    assert 0.1 == pytest.approx(np.std(off), rel=0.2)
    assert 200 < len(set(off))


def test_a_share_of_plans_is_unlucky() -> None:
    """Of all plans with two mild layers low about 3% fail, the same ones whenever asked."""
    built = instance("E", 100, 20, 0.8, 0)
    mild = np.argsort(single_errors(built.exact, 100))[:60]

    def failing() -> list[tuple[int, int]]:
        pairs = combinations((int(layer) for layer in mild), 2)
        return [pair for pair in pairs if error(built, tuple({*range(100)} - {*pair})) > 1.0]

    failed = failing()
    assert 0.02 < len(failed) / (60 * 59 / 2) < 0.04
    assert failed == failing()
