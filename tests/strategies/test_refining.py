"""Measuring a large model's layers one by one, once the ranking by blocks proves poor."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Simulation
from precision_bisect.plan import Plan
from precision_bisect.trial import Kind, Outcome, Phase
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.probes import Line
from precision_bisect_strategies.ranking import (
    Sensitivity,
    measure,
    rank,
)
from precision_bisect_strategies.refining import moved, refined, unknown
from precision_bisect_strategies.units import Rated, together

SIZE, ALONE = 1000, 256
"""So many layers, of which so many are measured alone at first."""
NEEDED = 12
NONE: frozenset[int] = frozenset()


@pytest.fixture(autouse=True)
def _few_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models of a thousand layers be large ones."""
    monkeypatch.setattr("precision_bisect_strategies.ranking.SINGLES_FOR_BUILDS", ALONE)
    monkeypatch.setattr("precision_bisect_strategies.ranking.SINGLES", ALONE)


def searched(spread: float, seed: int, *, predicts: bool = True) -> tuple[int, int]:
    """Search a large model whose emulator errs by `spread`; return builds, and errors of singles.

    Twelve layers overflow, and as many do for the emulator: those of the largest errors, as it
    sees them.
    """
    rng = random.Random(seed)
    true = [rng.gauss(0.0, 1.0) for _ in range(SIZE)]
    seen = [error + rng.gauss(0.0, spread) for error in true]
    culprits, suspects = (
        frozenset(sorted(range(SIZE), key=lambda layer: errors[layer])[-NEEDED:])
        for errors in (true, seen)
    )
    each = [0.3 * oracles.TOLERANCE / SIZE * 2.0**error for error in seen]

    def emulated(kept: frozenset[int]) -> Outcome:
        if suspects - kept:
            return oracles.outcome(math.inf)
        return oracles.outcome(sum(each) - sum(each[layer] for layer in kept))

    simulation = Simulation(SIZE, oracles.monotone(culprits), emulator=emulated)
    asked = replace(oracles.problem(SIZE), predicts=predicts)
    plan = simulation.run(Guided().search(asked))
    assert plan.kept == culprits
    kinds = [trial.proposal for trial in simulation.trials]
    ranked = sum(each.phase is Phase.RANKING and len(each.plan) == SIZE - 1 for each in kinds)
    return sum(each.kind is Kind.JUDGE for each in kinds), ranked


def test_a_poor_ranking_is_refined_and_that_saves_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told of each layer, where culprits lie in other blocks, too, it takes a tenth fewer."""
    with_, without = 0, 0
    for seed in range(3):
        builds, singles = searched(0.5, seed)
        assert singles == SIZE
        with_ += builds
        with monkeypatch.context() as context:
            context.setattr("precision_bisect_strategies.beliefs.DOUBTFUL", 2.0)
            builds, singles = searched(0.5, seed)
        assert singles <= ALONE
        without += builds
    assert with_ <= 0.9 * without


def test_a_right_ranking_stays_one_by_blocks() -> None:
    """No layer of a harmless block is measured where the sensitive ones are the culprits."""
    _, singles = searched(0.1, 0)
    assert singles <= ALONE


def test_trials_that_are_no_builds_are_not_saved_by_more_trials() -> None:
    """Where the emulator judges, a layer's forecast costs as much as a trial."""
    _, singles = searched(2.0, 0, predicts=False)
    assert singles <= ALONE


@pytest.mark.parametrize("workers", [1, 4])
def test_what_layers_share_is_measured(workers: int) -> None:
    """Afterwards every layer has its own error; those that had are not asked again."""
    size = 600
    scores = [1.0 + layer for layer in range(size)]
    asked = replace(oracles.problem(size), predicts=True, workers=workers)
    first = Simulation(size, oracles.additive(scores))
    told = first.run(rank(asked))
    assert len(told.shared) == size - ALONE
    again = Simulation(size, oracles.additive(scores))
    found = again.run(refined(asked, told))
    assert len(again.trials) == len(told.shared)
    alone = Simulation(size, oracles.additive(scores))
    assert found == alone.run(measure(asked, [(layer,) for layer in range(size)]))


def test_harmless_blocks_have_no_unknown_layers() -> None:
    """Where a block adds nothing each of its layers adds nothing: no forecast tells more."""
    told = Sensitivity([0.0, 0.0, 0.5, 0.5, 1.0], frozenset({0, 1, 2, 3}))
    assert unknown(told) == [2, 3]


def test_what_layers_share_joins_no_units() -> None:
    """That a pair adds less than two shares of its block does not mean that it acts together."""
    size, blocks = 60, (range(4, 8), range(40, 44))
    scores = [1.0 if layer in (4, 40) else 0.01 for layer in range(size)]
    shares = list(scores)
    for block in blocks:
        for layer in block:
            shares[layer] = sum(scores[inside] for inside in block) / len(block)
    asked = replace(oracles.problem(size), predicts=True)
    shared = frozenset(layer for block in blocks for layer in block)
    for told, joined in ((Sensitivity(shares, shared), False), (Sensitivity(shares, NONE), True)):
        units = Simulation(size, oracles.additive(scores)).run(together(asked, told, size))
        assert (len(units) < size) is joined


def test_small_models_share_nothing() -> None:
    """Each layer is measured alone from the start."""
    simulation = Simulation(3, oracles.additive([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3])
    assert simulation.run(rank(oracles.problem(3))) == Sensitivity([0.1, 0.2, 0.3], frozenset())


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=40)
def test_every_layer_stays_what_it_was(seed: int, figures: bool) -> None:
    """Low, kept, suspect, waiting or undecided: a new order changes places, not what is known."""
    size, rng = 30, random.Random(seed)
    parts = [rng.randrange(6) for _ in range(size)]
    order = [(layer,) for layer in rng.sample(range(size), size)]

    def of(part: int) -> list[int]:
        return [i for i in range(size) if parts[i] == part]

    low = of(0)
    state = Demotion(
        order=order,
        beliefs=believed(size, figures),
        limit=oracles.TOLERANCE,
        plan=Plan.all_high(size).without(order[i][0] for i in low),
        error=0.4,
        suspects=[Line(of(part), bad=True, error=0.3) for part in (1, 2) if of(part)],
        pool=of(3),
        kept={i: rng.choice((None, rng.random())) for i in of(4)},
        lowered=[(low, 0.4)] if low else [],
        waiting=[Line(of(5), bad=True, error=0.2)] if of(5) else [],
        raised=frozenset(of(5)),
    )
    ranked = [Rated((layer,), 1.0, 1.0) for layer in rng.sample(range(size), size)]
    after = moved(state, ranked, believed(size, figures), 2.0)

    def layers(which: Demotion, positions: list[int]) -> set[int]:
        return {which.order[i][0] for i in positions}

    assert after.plan == state.plan
    assert after.error == state.error
    assert layers(after, after.pool) == layers(state, state.pool)
    assert [layers(after, line.positions) for line in after.suspects] == [
        layers(state, line.positions) for line in state.suspects
    ]
    assert {after.order[i]: error for i, error in after.kept.items()} == {
        state.order[i]: error for i, error in state.kept.items()
    }
    assert [(layers(after, group), added) for group, added in after.lowered] == [
        (layers(state, group), added) for group, added in state.lowered
    ]
    assert [(layers(after, line.positions), line.error) for line in after.waiting] == [
        (layers(state, line.positions), line.error) for line in state.waiting
    ]
    assert layers(after, sorted(after.raised)) == layers(state, of(5))
    for line in after.suspects + after.waiting:
        assert line.positions == sorted(line.positions)


def believed(size: int, figures: bool) -> Beliefs:
    """Return beliefs over errors that grow along the line."""
    scores = [0.01 * 1.2**place for place in range(size)]
    return Beliefs(scores, [1.0] * size, room=1.0 if figures else None, expected=3)
