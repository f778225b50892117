"""Leaps: smaller plans where errors add up in quadrature, and nothing of it elsewhere."""

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, TrialStatus, Verdict
from precision_bisect_strategies import guided
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.leaps import QUADRATURE, SUM, Luck, Sizes, leap

LAYERS = 200


def rounding(
    errors: Sequence[float], *, luck: float = 0.1, seed: int = 0, scale: float = 1.0
) -> Oracle:
    """Let errors add up in quadrature, each plan's by its own luck, the same in every build."""

    def judge(kept: frozenset[int]) -> Outcome:
        squares = sum(error**2 for layer, error in enumerate(errors) if layer not in kept)
        drawn = random.Random(f"{seed}:{sorted(kept)}").gauss(0, luck)
        drawn = drawn if 0 < len(kept) < len(errors) else 0.0
        return oracles.outcome(scale * math.sqrt(squares) * math.exp(drawn))

    return judge


def spread(seed: int, *, low: float, size: int = LAYERS) -> list[float]:
    """Return lognormal errors of layers; all low they come to `low` tolerances."""
    chance = random.Random(seed)
    errors = [math.exp(chance.gauss(0, 0.6)) for _ in range(size)]
    return [low * each / math.hypot(*errors) for each in errors]


SCALE = 1.4
"""The emulator's errors are so many times the engine's."""


def engine(seed: int, low: float = 1.5, luck: float = 0.1, size: int = LAYERS) -> Simulation:
    """Return a network, and an emulator that is right but for its scale and its luck."""
    errors = spread(seed, low=low, size=size)
    judge = rounding(errors, luck=luck, seed=seed)
    emulator = rounding(errors, luck=luck, seed=seed + 1000, scale=SCALE)
    return Simulation(size, judge, emulator=emulator)


def asked(size: int = LAYERS, *, workers: int = 1, seed: int = 0) -> Problem:
    """Return the problem of an engine beside an emulator."""
    return replace(oracles.problem(size, seed=seed), predicts=True, workers=workers)


def leapt(simulation: Simulation, scores: Sequence[float], problem: Problem) -> Plan | None:
    """Leap from all-low's build alone; `scores` are the emulator's."""
    low = Plan.of(())
    built = [(low, simulation.oracle(low.kept))]
    return simulation.run(leap(problem, scores, [1.0] * problem.size, built, QUADRATURE))


def expected(errors: Sequence[float]) -> int:
    """Return how many of the worst layers must stay where nothing has luck."""
    worst = sorted(errors, reverse=True)
    return next(k for k in range(len(worst) + 1) if math.hypot(*worst[k:]) <= oracles.TOLERANCE)


@pytest.mark.parametrize("workers", [1, 4])
def test_few_builds_find_what_luck_allows(workers: int) -> None:
    """A dozen builds come to less than what must stay without luck; so do fewer rounds."""
    builds = kept = without = 0
    for seed in range(8):
        simulation = engine(seed)
        errors = spread(seed, low=1.5)
        plan = leapt(simulation, [SCALE * each for each in errors], asked(workers=workers))
        assert plan is not None
        assert simulation.passed(plan)
        builds += simulation.count()
        kept += len(plan)
        without += expected(errors)
    assert kept < 0.9 * without
    assert builds / 8 < 12 * (1 if workers == 1 else 2)


def test_smaller_sets_than_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole search keeps less with leaps than without, for about as many builds."""

    def none(*_: object) -> Search[None]:
        return None
        yield

    kept, builds = [], []
    for _ in range(2):
        simulations = [engine(seed) for seed in range(10)]
        plans = [
            simulation.run(Guided().search(asked(seed=seed)))
            for seed, simulation in enumerate(simulations)
        ]
        kept.append(sum(map(len, plans)))
        builds.append(sum(simulation.count() for simulation in simulations))
        monkeypatch.setattr(guided, "leap", none)
    assert kept[0] < 0.95 * kept[1]
    assert builds[0] < 1.1 * builds[1]


def test_none_where_errors_add_up() -> None:
    """Additive errors are no steady multiple of what quadrature says: no build is spent."""
    errors = [each / 10 for each in spread(0, low=1.5)]
    simulation = Simulation(LAYERS, oracles.additive(errors))
    assert leapt(simulation, errors, asked()) is None
    assert simulation.count() == 0


def test_none_without_a_limit() -> None:
    """A check that only says yes or no has no figures to go by."""
    errors = spread(0, low=1.5)
    simulation = Simulation(LAYERS, oracles.pass_fail(rounding(errors)))
    problem = replace(asked(), tolerance=None)
    assert leapt(simulation, errors, problem) is None
    assert not simulation.trials


def test_an_engine_unlike_the_emulator_costs_few_builds() -> None:
    """Where the engine's errors just add up, leaps that fail as often as not end soon."""
    errors = spread(1, low=1.5)
    emulator = rounding(errors, luck=0.0)
    total = sum(errors)
    judge = oracles.additive([2 * each / total for each in errors])
    simulation = Simulation(LAYERS, judge, emulator=emulator)
    plan = leapt(simulation, errors, asked())
    assert plan is None or simulation.passed(plan)
    assert simulation.count() < 25


def test_costs_decide_what_is_worth_keeping() -> None:
    """Layers that are dear to keep stay less often than cheap ones of the same errors."""
    errors = [1.5 / math.sqrt(LAYERS)] * LAYERS
    costs = [4.0 if layer % 2 else 1.0 for layer in range(LAYERS)]
    simulation = Simulation(LAYERS, rounding(errors), emulator=rounding(errors, seed=9))
    low = Plan.of(())
    built = [(low, simulation.oracle(low.kept))]
    plan = simulation.run(leap(asked(), errors, costs, built, QUADRATURE))
    assert plan is not None
    cheap = sum(layer % 2 == 0 for layer in plan.indices)
    assert cheap > 0.9 * len(plan)


def test_dear_layers_do_not_lead_in_circles() -> None:
    """Plans that pass and save nothing are no leaps: a few dear layers do not keep it going."""
    chance = random.Random(2)
    costs = [20.0 if chance.random() < 0.05 else 1.0 for _ in range(100)]
    errors = [2 * math.sqrt(cost / sum(costs)) for cost in costs]
    simulation = Simulation(100, rounding(errors, seed=2), emulator=rounding(errors, seed=99))
    problem = replace(asked(100), costs=costs)
    plan = simulation.run(Guided().search(problem))
    assert simulation.passed(plan)
    assert simulation.count() < 150


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    "otherwise",
    [
        oracles.outcome(math.inf),
        replace(oracles.outcome(0.5), verdict=None, status=TrialStatus.NOT_HONOURED),
        replace(oracles.outcome(0.5), verdict=Verdict.FAIL),
    ],
)
def test_a_layer_that_no_forecast_knows_costs_few_builds(otherwise: Outcome, workers: int) -> None:
    """Where plans come to something else without one layer, leaps that promised more end soon."""
    errors = spread(3, low=1.5, size=120)
    needed = sorted(range(120), key=lambda layer: -errors[layer])[60]
    judge = rounding(errors, seed=3)

    def engine_of(kept: frozenset[int]) -> Outcome:
        return judge(kept) if needed in kept or not kept else otherwise

    simulation = Simulation(120, engine_of, emulator=rounding(errors, seed=102, scale=SCALE))
    low = Plan.of(())
    built = [(low, simulation.oracle(low.kept))]
    scores = [SCALE * each for each in errors]
    problem = asked(120, workers=workers)
    simulation.run(leap(problem, scores, [1.0] * 120, built, QUADRATURE))
    assert simulation.count() <= 12


@pytest.mark.parametrize("tolerance", [0.0, -1.0])
def test_none_within_nothing(tolerance: float) -> None:
    """A limit that no rounding is within tells of no chance."""
    simulation = engine(0)
    problem = replace(asked(), tolerance=tolerance)
    assert leapt(simulation, spread(0, low=1.5), problem) is None


def test_none_for_figures_beyond_squaring() -> None:
    """Errors whose squares overflow are left to the rest of the search."""
    assert leapt(engine(0), [1e200 * each for each in spread(0, low=1.5)], asked()) is None


def noisy_sums(seed: int, low: float, noise: float = 0.1) -> tuple[list[float], Oracle]:
    """Return errors that add up, and an engine each of whose builds has luck of its own."""
    scale = low / sum(errors := spread(seed, low=low))
    errors = [scale * each for each in errors]
    luck = random.Random(seed)

    def judge(kept: frozenset[int]) -> Outcome:
        total = sum(error for layer, error in enumerate(errors) if layer not in kept)
        return oracles.outcome(total * math.exp(luck.gauss(0, noise)))

    return errors, judge


@pytest.mark.parametrize("workers", [1, 4])
def test_noisy_sums_are_leapt_to_without_much_luck(workers: int) -> None:
    """A few builds come to what must stay, and what that adds is hardly above the limit."""
    for seed in range(8):
        errors, judge = noisy_sums(seed, low=1.6)
        simulation = Simulation(LAYERS, judge)
        built = [(Plan.of(()), oracles.outcome(sum(errors)))]
        law = SUM
        problem = asked(workers=workers, seed=seed)
        plan = simulation.run(leap(problem, errors, [1.0] * LAYERS, built, law))
        assert plan is not None
        assert simulation.passed(plan)
        assert Sizes(errors, [1.0] * LAYERS, law).error(plan) <= 1.15 * oracles.TOLERANCE
        worst = sorted(errors)
        least = LAYERS - bisect_right(list(accumulate(worst)), oracles.TOLERANCE)
        assert len(plan) <= 1.15 * least + 1
        assert simulation.count() <= 16
        assert simulation.count(predicted=True) == 0


def test_laws_say_what_is_expected() -> None:
    """The sum, or the root of the squares, of what runs low; the worst stay for their cost."""
    errors, costs = [3.0, 4.0, 12.0], [1.0, 1.0, 6.0]
    summed, squared = Sizes(errors, costs, SUM), Sizes(errors, costs, QUADRATURE)
    assert (19.0, 13.0) == (summed.expected(0), squared.expected(0))
    assert (15.0, 5.0) == (summed.expected(1), squared.expected(1))
    assert (Plan.of([1]), Plan.of([2])) == (summed.plan(1), squared.plan(1))
    assert (7.0, 5.0) == (summed.error(Plan.of([2])), squared.error(Plan.of([2])))
    assert [0.0, 0.0] == [each.expected(3) for each in (summed, squared)]


def test_promises_that_are_not_kept_count() -> None:
    """Leaps end where they promised three more passes than came."""
    luck = Luck(ratios=[0.0] * 6)
    assert luck.told
    assert luck.chances(1.0)(0.0) == 1.0
    luck.promised = 3.0
    assert not luck.told
    luck.kept = 1
    assert luck.told


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    low=st.floats(1.05, 6.0),
    luck=st.floats(0.0, 0.3),
    share=st.sampled_from([0.0, 0.2]),
    workers=st.sampled_from([1, 3]),
)
def test_whatever_comes_of_it_passed(
    seed: int, low: float, luck: float, share: float, workers: int
) -> None:
    """The plan passed, also where plans do not build; the same seed asks the same again."""
    size = 40
    runs = []
    for _ in range(2):
        simulation = engine(seed, low, luck, size)
        simulation.oracle = oracles.flaky(simulation.oracle, size, seed, share)
        plan = simulation.run(Guided().search(asked(size, workers=workers, seed=seed)))
        assert simulation.passed(plan)
        runs.append(
            (plan, [(trial.proposal.plan, trial.proposal.kind) for trial in simulation.trials])
        )
    assert runs[0] == runs[1]
    assert any(kind is not Kind.PREDICT for _, kind in runs[0][1]) or not runs[0][1]
