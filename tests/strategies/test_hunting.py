"""Heavy layers that a ranking took for mild ones: found among those that run low."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.trial import Kind, Outcome, TrialStatus
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.hunting import WORTH, Bounds, hunt
from precision_bisect_strategies.probes import Line
from precision_bisect_strategies.rounds import demote
from precision_bisect_strategies.spending import refill

SIZE, FEW = 120, 4
"""So many layers, of which so few must stay."""


def drawn(seed: int, correlation: float, size: int = SIZE) -> tuple[list[float], list[float]]:
    """Return heavy-tailed errors of which all but a few fit, and what a ranking says of them."""
    rng = random.Random(seed)
    latent = [rng.gauss(0, 1) for _ in range(size)]
    apart = math.sqrt(1 - correlation**2)
    seen = [correlation * each + apart * rng.gauss(0, 1) for each in latent]
    true = [math.exp(2 * each) for each in latent]
    ranked = sorted(true)
    scale = oracles.TOLERANCE / (sum(ranked[:-FEW]) + ranked[-FEW] / 2)
    return [scale * each for each in true], [scale * math.exp(2 * each) for each in seen]


def demoted(
    true: list[float], seen: list[float], workers: int = 1, noise: float = 0.0
) -> Demotion:
    """Return the state once as many layers run low along the ranking as fit.

    Positions are layers: the ranking is that of the sorted pairs.
    """
    low, base = 0, 0.0
    while base + true[low] <= oracles.TOLERANCE:
        base += true[low]
        low += 1
    beliefs = Beliefs(seen, [1.0] * SIZE, room=oracles.TOLERANCE, expected=SIZE - low)
    for end in (low // 2, low):
        beliefs.learn_sum(list(range(end)), sum(true[:end]))
    beliefs.learn_sum(list(range(SIZE)), sum(true))
    return Demotion(
        order=[(layer,) for layer in range(SIZE)],
        beliefs=beliefs,
        limit=oracles.TOLERANCE,
        plan=Plan.of(range(low, SIZE)),
        error=base,
        suspects=[],
        workers=workers,
        noise=noise,
        kept=dict(enumerate(true[low:], low)),
        lowered=[(list(range(low)), base)],
    )


def ranked(seed: int, correlation: float) -> tuple[list[float], list[float]]:
    """Return true errors and the ranking's, in the ranking's order."""
    pairs = sorted(zip(*drawn(seed, correlation), strict=True), key=lambda pair: pair[1])
    return [true for true, _ in pairs], [seen for _, seen in pairs]


def hunted(state: Demotion, oracle: Oracle) -> int:
    """Hunt on an oracle; return the number of builds."""
    simulation = Simulation(SIZE, oracle)
    simulation.run(hunt(state))
    assert oracle(state.plan.kept).passed
    return len(simulation.trials)


@pytest.mark.parametrize("workers", [1, 4])
def test_heavy_layers_are_kept_in_the_place_of_several(workers: int) -> None:
    """Of what a poor ranking keeps a tenth can go, for few builds for each such layer."""
    before, after, builds = 0, 0, 0
    for seed in range(10):
        true, seen = ranked(seed, 0.5)
        state = demoted(true, seen, workers)
        before += len(state.plan)
        builds += hunted(state, oracles.additive(true))
        after += len(state.plan)
    assert after <= 0.9 * before
    assert builds <= 2.5 * (before - after)


def test_little_is_hunted_where_it_is_not_worth_it() -> None:
    """Where the ranking is right there is hardly a build, and none where noise hides all."""
    builds = 0
    for seed in range(10):
        true, _ = ranked(seed, 0.5)
        right = sorted(true)
        builds += hunted(demoted(right, right), oracles.additive(right))
        true, seen = ranked(seed, 0.5)
        noisy = demoted(true, seen, noise=0.02 * oracles.TOLERANCE)
        assert not hunted(noisy, oracles.additive(true))
    assert builds <= 3


@pytest.mark.parametrize("workers", [1, 4])
def test_a_hunt_ends_where_parts_add_less_than_the_whole(workers: int) -> None:
    """Where any low layer costs what all of them do, a group is cut as often as halving takes."""
    builds = [fruitless(seed, workers) for seed in range(10)]
    assert 0 < max(builds) <= 1 + math.ceil(math.log2(SIZE))


@pytest.mark.parametrize("workers", [1, 4])
def test_a_hunt_ends_once_it_found_less_than_promised(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Also where groups could be cut on: three layers that were promised are missed by then."""

    def allow(bounds: Bounds, group: Sequence[int]) -> bool:
        return not bounds.raised.issuperset(group)

    monkeypatch.setattr(Bounds, "allow", allow)
    patient = [fruitless(seed, workers) for seed in range(10)]
    monkeypatch.setattr("precision_bisect_strategies.hunting.PATIENCE", math.inf)
    assert max(patient) < max(fruitless(seed, workers) for seed in range(10))


def fruitless(seed: int, workers: int) -> int:
    """Hunt where low layers act together, all in one; return the number of builds."""
    true, seen = ranked(seed, 0.5)
    state = demoted(true, seen, workers)
    needed, base = state.plan.kept, state.error or 0.0
    low = frozenset(range(SIZE)) - needed

    def oracle(kept: frozenset[int]) -> Outcome:
        error = base if low - kept else 0.0
        return oracles.outcome(error + sum(true[i] for i in needed - kept))

    builds = hunted(state, oracle)
    assert state.plan.kept == needed
    return builds


@pytest.mark.parametrize("workers", [1, 3])
def test_all_heavy_layers_of_a_round_are_kept_in_the_end(workers: int) -> None:
    """One that passed beside another that was kept is tried again on top of that."""
    heavy, mild, undecided = [0.45, 0.44], [0.001] * 38, [0.05] * 40
    true = [error * oracles.TOLERANCE for error in (*heavy, *mild, *undecided)]
    size = len(true)
    scores = [1e-3 * (1 + place / 10) for place in range(size)]
    beliefs = Beliefs(scores, [1.0] * size, room=oracles.TOLERANCE, expected=40)
    beliefs.learn_sum(list(range(size)), sum(true))
    state = Demotion(
        order=[(layer,) for layer in range(size)],
        beliefs=beliefs,
        limit=oracles.TOLERANCE,
        plan=Plan.of(range(40, size)),
        error=sum(true[:40]),
        suspects=[],
        workers=workers,
        pool=list(range(40, size)),
        lowered=[([0], true[0]), ([1], true[1]), (list(range(2, 40)), sum(true[2:40]))],
    )
    Simulation(size, oracles.additive(true)).run(hunt(state))
    assert sorted(state.kept) == [0, 1]
    assert state.kept == pytest.approx(dict(enumerate(true[:2])))


@pytest.mark.parametrize("seed", range(3, 6))
def test_the_unit_of_costs_does_not_matter(seed: int) -> None:
    """Milliseconds or seconds: the same trials."""
    true, seen = drawn(seed, 0.5, 200)
    proposed = []
    for scale in (1e-3, 1.0, 1e3):
        rng = random.Random(seed)
        costs = [scale * rng.choice((1.0, 2.0, 4.0)) for _ in true]
        asked = replace(oracles.problem(200), costs=costs)
        _, simulation = oracles.certified(Guided(), asked, oracles.additive(true), seen)
        proposed.append([trial.proposal for trial in simulation.trials])
    assert any("low ones" in proposal.reason for proposal in proposed[0])
    assert proposed[0] == proposed[1] == proposed[2]


def test_what_cannot_be_built_is_gone_round() -> None:
    """Where no build keeps a layer that runs low the plan stays as it was."""
    true, seen = ranked(2, 0.5)
    state = demoted(true, seen)
    before, known = state.plan, oracles.additive(true)

    def oracle(kept: frozenset[int]) -> Outcome:
        if kept - before.kept:
            return Outcome(status=TrialStatus.BUILD_FAILED)
        return known(kept)

    assert 0 < hunted(state, oracle) <= 40
    assert state.plan == before


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([1, 4]))
@settings(max_examples=40, deadline=None)
def test_what_is_hunted_stays_consistent(seed: int, correlation: float, workers: int) -> None:
    """Every position is kept, waits, or is in one low group; the plan keeps the others."""
    true, seen = ranked(seed, correlation)
    state = demoted(true, seen, workers)
    before, oracle = len(state.plan), oracles.additive(true)
    hunted(state, oracle)
    low = [i for group, _ in state.lowered for i in group]
    assert sorted([*state.kept, *state.undecided, *low]) == list(range(SIZE))
    assert sorted(state.plan.kept) == sorted([*state.kept, *state.undecided])
    assert state.error == pytest.approx(sum(true) - sum(true[i] for i in state.plan.kept))
    Simulation(SIZE, oracle).run(refill(state))
    if not state.waiting:
        assert len(state.plan) <= before


def one_heavy(heavy: float, mild: float, low: int = 120, size: int = 240) -> Demotion:
    """Return the state where half the layers run low, among them the only heavy one, 10."""
    errors = [oracles.TOLERANCE * (heavy if i == 10 else mild) for i in range(size)]
    beliefs = Beliefs([1.0] * size, [1.0] * size, room=oracles.TOLERANCE, expected=5)
    beliefs.learn_sum(list(range(size)), sum(errors))
    return Demotion(
        order=[(layer,) for layer in range(size)],
        beliefs=beliefs,
        limit=oracles.TOLERANCE,
        plan=Plan.of(range(low, size)),
        error=sum(errors[:low]),
        suspects=[],
        pool=list(range(low, size)),
        lowered=[(list(range(low)), sum(errors[:low]))],
    )


def test_a_part_that_is_dear_as_a_whole_is_kept_at_once() -> None:
    """What takes the place of many others goes first; what it need not be goes after that."""
    state = one_heavy(0.6, 0.002)
    pool, error = state.pool, state.error or 0.0
    errors = [oracles.TOLERANCE * (0.6 if i == 10 else 0.002) for i in range(240)]
    simulation = Simulation(240, oracles.additive(errors))
    assert simulation.run(hunt(state))
    builds = len(simulation.trials)
    (part,) = state.waiting
    assert 10 in part.positions
    assert len(part.positions) > 1
    assert state.plan.kept == {*part.positions, *pool}
    assert part.error == pytest.approx(error - (state.error or 0.0))
    state = simulation.run(demote(state, None))
    assert state.plan.kept == {10}
    assert builds <= 6
    assert len(simulation.trials) <= builds + 10


def test_a_hunt_goes_first_where_it_should_let_more_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than the next groups of a few layers; without that rule it waits for single ones."""
    before = {}
    for chance in (0.5, math.inf):
        monkeypatch.setattr("precision_bisect_strategies.rounds.EVEN", chance)
        errors = [oracles.TOLERANCE * (0.5 if i == 10 else 0.004) for i in range(240)]
        simulation = Simulation(240, oracles.additive(errors))
        simulation.run(demote(one_heavy(0.5, 0.004), None))
        hunts = ["low ones" in trial.proposal.reason for trial in simulation.trials]
        before[chance] = hunts.index(True)
    assert before[0.5] < before[math.inf]


@pytest.mark.parametrize("seed", range(5))
def test_a_part_that_waits_ends_no_other_hunt(seed: int) -> None:
    """One that finds nothing is bounded as ever, and says so."""
    true, seen = ranked(seed, 0.5)
    state = demoted(true, seen)
    base, last = state.error or 0.0, sorted(state.kept)[-2:]
    for i in last:
        del state.kept[i]
    state.waiting = [Line(last, bad=True, error=sum(true[i] for i in last))]
    needed, low = state.plan.kept, frozenset(range(SIZE)) - state.plan.kept

    def together(kept: frozenset[int]) -> Outcome:
        error = base if low - kept else 0.0
        return oracles.outcome(error + sum(true[i] for i in needed - kept))

    simulation = Simulation(SIZE, together)
    assert not simulation.run(hunt(state))
    assert len(simulation.trials) <= 1 + math.ceil(math.log2(SIZE))


def test_hunting_makes_answers_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a poor ranking a fifth fewer layers are kept with it, for some builds for each."""
    kept, builds = {}, {}
    for worth in (WORTH, math.inf):
        monkeypatch.setattr("precision_bisect_strategies.hunting.WORTH", worth)
        found = [searched(seed) for seed in range(12)]
        kept[worth], builds[worth] = (sum(each) for each in zip(*found, strict=True))
    assert kept[WORTH] <= 0.8 * kept[math.inf]
    assert builds[WORTH] - builds[math.inf] <= 7 * (kept[math.inf] - kept[WORTH])


def searched(seed: int) -> tuple[int, int]:
    """Search and certify; return how many layers are kept, and after how many builds."""
    true, seen = drawn(seed, 0.5, 200)
    plan, simulation = oracles.certified(
        Guided(), oracles.problem(200), oracles.additive(true), seen, mode="groups"
    )
    assert simulation.passed(plan)
    return len(plan), sum(trial.proposal.kind is Kind.JUDGE for trial in simulation.trials)
