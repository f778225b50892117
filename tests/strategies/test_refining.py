"""Measuring a large model's layers one by one, once the ranking by blocks proves poor."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.sensitivity import (
    Sensitivity,
    measure,
    rank,
)
from precision_bisect.trial import Kind, Outcome, Phase
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.probes import Line
from precision_bisect_strategies.refining import cut, loosened, moved, refined, unknown
from precision_bisect_strategies.units import Rated, together

SIZE, ALONE = 1000, 256
"""So many layers, of which so many are measured alone at first."""
NEEDED = 12
NONE: frozenset[int] = frozenset()


@pytest.fixture(autouse=True)
def _few_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models of a thousand layers be large ones."""
    monkeypatch.setattr("precision_bisect.sensitivity.SINGLES_FOR_BUILDS", ALONE)
    monkeypatch.setattr("precision_bisect.sensitivity.SINGLES", ALONE)


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
    errors = alone.run(measure(asked, [(layer,) for layer in range(size)]))
    assert found == Sensitivity(errors, NONE)


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


@given(st.integers(0, 10_000), st.booleans(), st.integers(1, 4))
@settings(max_examples=60)
def test_every_layer_stays_what_it_was(seed: int, figures: bool, together: int) -> None:
    """Low, kept, suspect, waiting or undecided: new units change places, not what is known.

    Only a kept layer that acts together with undecided ones is as undecided as these.
    """
    size, rng = 30, random.Random(seed)
    state = drawn(size, rng, figures=figures)
    units, end = [], 0
    while end < size:
        start, end = end, min(end + rng.randint(1, together), size)
        units.append(tuple(range(start, end)))
    free = loosened(state, units)
    parts = cut(units, free)
    assert sorted(layer for part in parts for layer in part) == list(range(size))
    ranked = [Rated(part, 1.0, 1.0) for part in rng.sample(parts, len(parts))]
    after = moved(free, ranked, believed(len(ranked), figures), 2.0)

    def layers(which: Demotion, positions: Iterable[int]) -> set[int]:
        return {layer for i in positions for layer in which.order[i]}

    def fields(which: Demotion) -> list[tuple[set[int], float | None]]:
        lines = [(layers(which, line.positions), line.error) for line in which.suspects]
        lines += [(layers(which, line.positions), line.error) for line in which.waiting]
        return [*lines, (layers(which, which.pool), None), *low(which)]

    def low(which: Demotion) -> list[tuple[set[int], float | None]]:
        return [(layers(which, group), added) for group, added in which.lowered]

    assert (after.plan, after.error) == (state.plan, state.error)
    assert layers(after, after.raised) >= layers(state, state.raised)
    assert fields(after) == fields(free)
    assert low(after) == low(state)
    undecided = layers(state, state.undecided)
    joined = {layer for unit in units if not undecided.isdisjoint(unit) for layer in unit}
    kept = layers(state, state.kept)
    assert layers(after, after.kept) == kept - joined
    assert layers(after, after.undecided) == undecided | (kept & joined)
    for line in after.suspects + after.waiting:
        assert line.positions == sorted(line.positions)
    for position, error in after.kept.items():
        members = [state.kept[state.order.index((layer,))] for layer in after.order[position]]
        known = [each for each in members if each is not None]
        assert error == (max(known) if len(known) == len(members) else None)


def drawn(size: int, rng: random.Random, *, figures: bool) -> Demotion:
    """Draw a state of single layers; some low, suspect, kept, undecided, or waiting."""
    parts = [rng.randrange(6) for _ in range(size)]

    def of(part: int) -> list[int]:
        return [i for i in range(size) if parts[i] == part]

    order = [(layer,) for layer in rng.sample(range(size), size)]
    low = of(0)
    return Demotion(
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


def test_blocks_that_act_together_are_found_under_a_poor_ranking() -> None:
    """Blocks of five, most of which the ranking by larger blocks hid: they go as units."""
    size, five, few, builds, kept = 2000, 5, 4, 0, 0
    for seed in range(3):
        rng = random.Random(seed)
        true, seen = ([rng.lognormvariate(0, 2) for _ in range(size // five)] for _ in range(2))
        worst = sorted(true)[-few:]
        scale = oracles.TOLERANCE / (sum(true) - sum(worst) + worst[0] / 2)
        oracle, emulator = (
            in_blocks([scale * error for error in errors], five) for errors in (true, seen)
        )
        simulation = Simulation(size, oracle, emulator=emulator)
        plan = simulation.run(Guided().search(replace(oracles.problem(size), predicts=True)))
        builds += simulation.count()
        kept += len(plan)
    assert builds <= 300
    assert kept <= 5 * few * five


def in_blocks(errors: Sequence[float], length: int) -> Oracle:
    """Let each block of layers cost its error once any of it is low."""
    everything = frozenset(range(len(errors) * length))

    def judge(kept: frozenset[int]) -> Outcome:
        low = {layer // length for layer in everything - kept}
        return oracles.outcome(sum(errors[block] for block in low))

    return judge


def believed(size: int, figures: bool) -> Beliefs:
    """Return beliefs over errors that grow along the line."""
    scores = [0.01 * 1.2**place for place in range(size)]
    return Beliefs(scores, [1.0] * size, room=1.0 if figures else None, expected=3)
