"""How many builds the guided search takes where errors add up, and how small its sets are."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

import oracles
from effort import nightly
from oracles import Simulation
from precision_bisect.trial import Kind, Proposal
from precision_bisect_strategies.ddmin import Ddmin
from precision_bisect_strategies.guided import Guided

SEEDS = 2


def additive(size: int, few: int, seed: int) -> list[float]:
    """Return heavy-tailed errors, of which all but the `few` largest fit into the tolerance."""
    rng = random.Random(seed)
    errors = sorted(rng.lognormvariate(0, 2) for _ in range(size))
    fits = sum(errors[:-few]) + errors[-few] / 2
    scaled = [error * oracles.TOLERANCE / fits for error in errors]
    rng.shuffle(scaled)
    return scaled


@pytest.mark.parametrize("seed", [0, *nightly(1, 2, 3)])
def test_a_right_ranking_takes_few_builds_beside_the_certificate(seed: int) -> None:
    """Where the emulator has the order, builds go to proof."""
    size, few = 400, 40
    errors = additive(size, few, seed)
    scores = [1.3 * error**1.1 for error in errors]
    plan, simulation = oracles.certified(
        Guided(), oracles.problem(size), oracles.additive(errors), scores, mode="full"
    )
    assert len(plan) <= 1.05 * few
    builds = [trial for trial in simulation.trials if trial.proposal.kind is Kind.JUDGE]
    assert len(builds) <= few + 12


def test_groups_are_looked_at_again_once_a_ranking_is_worse_than_it_seemed() -> None:
    """What was demoted in good faith is undone where the ranking proves poor; sets stay small."""
    size, few, again, kept = 300, 20, 0, 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        errors = additive(size, few, seed)
        scores = [error * rng.lognormvariate(0, 1.5) for error in errors]
        oracle = oracles.additive(errors)
        plan, simulation = oracles.certified(Guided(), oracles.problem(size), oracle, scores)
        assert simulation.passed(plan)
        kept += len(plan)
        again += any("ones again" in trial.proposal.reason for trial in simulation.trials)
    assert again
    assert kept <= 1.2 * few * SEEDS


@pytest.mark.parametrize(
    ("each", "workers", "most"),
    [
        ((1.0, 2.0, 4.0), 1, 1.13),
        pytest.param((1.0, 2.0, 4.0), 4, 1.08, marks=pytest.mark.nightly),
        pytest.param((1.0, 100.0), 1, 1.13, marks=pytest.mark.nightly),
    ],
)
def test_layers_that_cost_unlike_are_weighed_one_by_one(
    each: Sequence[float], workers: int, most: float
) -> None:
    """No credit is given where a heavy layer may be cheap: answers cost about what they must."""
    size, few, paid, least = 100, 10, 0.0, 0.0
    for seed in range(12):
        rng = random.Random(seed)
        errors = additive(size, few, seed)
        costs = [rng.choice(each) for _ in range(size)]
        scores = [error * rng.lognormvariate(0, 0.1) for error in errors]
        asked = replace(oracles.problem(size), costs=costs, workers=workers)
        plan, _ = oracles.certified(Guided(), asked, oracles.additive(errors), scores)
        paid += sum(costs[layer] for layer in plan.indices)
        room = oracles.TOLERANCE
        for layer in sorted(range(size), key=lambda layer: errors[layer] / costs[layer]):
            least += costs[layer] if errors[layer] > room else 0.0
            room -= errors[layer] if errors[layer] <= room else 0.0
    assert paid <= most * least


@pytest.mark.parametrize("seed", [0, *nightly(1, 2)])
def test_a_right_ranking_takes_few_rounds_with_workers(seed: int) -> None:
    """Forty layers must stay of 400: ten rounds of four test each, and few more find them."""
    size, few = 400, 40
    errors = additive(size, few, seed)
    batches: list[tuple[Proposal, ...]] = []
    asked = replace(oracles.problem(size), workers=4)
    simulation = Simulation(size, oracles.additive(errors), [1.3 * error for error in errors])
    found = simulation.run(oracles.batched(Guided().search(asked), batches))
    assert len(found) <= 1.05 * few
    assert len([batch for batch in batches if batch[0].kind is Kind.JUDGE]) <= few / 4 + 18


@pytest.mark.parametrize("seed", [0, *nightly(1, 2, 3)])
def test_guided_beats_ddmin_on_additive_errors(seed: int) -> None:
    """Where small errors add up, the ranking gives a smaller set in fewer trials than ddmin."""
    rng = random.Random(seed)
    errors = [rng.lognormvariate(0, 2) for _ in range(200)]
    scale = oracles.TOLERANCE / sum(sorted(errors)[:-10]) * 0.999
    oracle = oracles.additive([error * scale for error in errors])
    guided, cheap = oracles.certified(Guided(), oracles.problem(200), oracle)
    ddmin, dear = oracles.certified(Ddmin(), oracles.problem(200), oracle)
    assert len(guided) == 10
    assert len(guided) <= len(ddmin)
    assert cheap.count() < dear.count()
