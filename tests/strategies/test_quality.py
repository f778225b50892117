"""How many trials the guided search may take, with a good, a useless and no ranking."""

import random

import pytest

import oracles
from oracles import Oracle, Simulation
from precision_bisect.certifying import certify
from precision_bisect_strategies.ddmin import Ddmin
from precision_bisect_strategies.guided import Guided
from textbook import quickxplain

LAYERS = 2000
SEEDS = 8
CULPRITS = frozenset((17, 402, 403, 1111, 1999))


def tails(seed: int) -> list[float]:
    """Return heavy-tailed errors of all layers, which together use 90% of the tolerance."""
    rng = random.Random(seed)
    errors = [rng.lognormvariate(0, 2) for _ in range(LAYERS)]
    return [0.9 * oracles.TOLERANCE * error / sum(errors) for error in errors]


def with_tails(seed: int) -> Oracle:
    """Return an oracle of culprits that overflow among layers whose small errors add up."""
    small = oracles.additive(tails(seed))
    overflow = oracles.monotone(CULPRITS)
    return lambda kept: small(kept) if overflow(kept).passed else overflow(kept)


@pytest.mark.parametrize(
    "oracle",
    [
        oracles.monotone(CULPRITS),
        oracles.pass_fail(oracles.monotone(CULPRITS)),
        with_tails(1),
        with_tails(2),
    ],
    ids=["figure", "pass-fail", "tails-1", "tails-2"],
)
def test_few_culprits_in_a_large_model_are_cheap(oracle: Oracle) -> None:
    """Five culprits in 2,000 layers cost at most 900 forecasts and 30 trials."""
    figure = oracle(frozenset()).error is not None
    asked = oracles.problem(LAYERS, oracles.TOLERANCE if figure else None)
    plan, simulation = oracles.certified(Guided(), asked, oracle)
    assert plan.kept == CULPRITS
    assert simulation.count(predicted=True) <= 900
    assert simulation.count() <= 30


def test_a_whole_block_of_culprits_is_found() -> None:
    """Culprits side by side, filling blocks and crossing their borders, are all found."""
    needed = frozenset(range(100, 140))
    plan, simulation = oracles.certified(
        Guided(), oracles.problem(LAYERS), oracles.monotone(needed)
    )
    assert plan.kept == needed
    assert simulation.count(predicted=True) <= 900
    assert simulation.count() <= len(needed) + 10


@pytest.mark.parametrize(("size", "few"), [(300, 1), (300, 5), (300, 20), (2000, 5), (500, 60)])
def test_a_useless_ranking_costs_no_more_than_quickxplain(size: int, few: int) -> None:
    """With random scores the trials stay within 1.1 times those of plain QuickXplain, plus 6."""
    ours = theirs = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        scores = [rng.random() for _ in range(size)]
        oracle = oracles.monotone(rng.sample(range(size), few))
        plan, simulation = oracles.certified(Guided(), oracles.problem(size), oracle, scores)
        ours += simulation.count()
        baseline = Simulation(size, oracle)
        order = sorted(range(size), key=lambda layer: -scores[layer])
        found = baseline.run(quickxplain(order))
        assert baseline.run(certify(oracles.problem(size), found, "full")) == plan
        theirs += baseline.count()
    assert ours <= 1.1 * theirs + 6 * SEEDS


def test_a_ranking_that_misleads_about_the_limit_costs_trials_only() -> None:
    """Scores above the tolerance for layers that need not stay are found out."""
    needed = frozenset((5, 150, 299))
    scores = [0.5 if layer in needed else 2.0 for layer in range(300)]
    plan, simulation = oracles.certified(
        Guided(), oracles.problem(300), oracles.monotone(needed), scores
    )
    assert plan.kept == needed
    assert simulation.count() <= 60


@pytest.mark.parametrize("seed", range(4))
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
