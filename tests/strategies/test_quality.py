"""How many trials the guided search may take, with a good, a useless and no ranking."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import oracles
from effort import nightly
from oracles import Oracle, Simulation
from precision_bisect.protocols import Problem
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.guided import Guided
from textbook import quickxplain

LAYERS = 2000
SEEDS = 4
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
        oracles.without_figures(oracles.monotone(CULPRITS)),
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


@pytest.mark.parametrize(
    ("size", "few"),
    [
        (300, 1),
        (300, 5),
        *nightly((300, 20), (1000, 5)),
    ],
)
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


@pytest.mark.parametrize("workers", [1, *nightly(4, 16)])
def test_noise_does_not_hide_a_smaller_plan_that_passed(workers: int) -> None:
    """Where two builds differ by a fifth, the answer keeps no more than any that passed."""
    size, noise = 300, 0.2 * oracles.TOLERANCE
    for seed in range(SEEDS):
        rng = random.Random(seed)
        errors = [rng.lognormvariate(0, 2) for _ in range(size)]
        scale = oracles.TOLERANCE / sum(sorted(errors)[:-3])
        quiet = oracles.additive([error * scale for error in errors])

        def noisy(kept: frozenset[int], *, quiet: Oracle = quiet, seed: int = seed) -> Outcome:
            luck = random.Random(f"{seed} {sorted(kept)}").gauss(1.0, 0.2)
            error = quiet(kept).error or 0.0
            return oracles.outcome(error if len(kept) in (0, size) else max(error * luck, 0.0))

        simulation = Simulation(size, noisy, emulator=quiet)
        asked = replace(engine(size), workers=workers, noise=noise)
        plan = simulation.run(Guided().search(asked))
        passed = [t.proposal.plan for t in simulation.trials if t.outcome.passed]
        judged = [plan for plan in passed if simulation.passed(plan)]
        assert len(plan) == min(map(len, judged))


def test_errors_below_zero_are_believed_to_be_none() -> None:
    """A check may find a plan better than the reference; no figure turns into NaN."""
    rng = random.Random(3)
    errors = [rng.lognormvariate(0, 2) for _ in range(60)]
    errors = [error * oracles.TOLERANCE * 3 / sum(errors) for error in errors]
    errors[5], errors[7] = -1e-4, -1e-5
    with np.errstate(invalid="raise"):
        plan, simulation = oracles.certified(
            Guided(), oracles.problem(60), oracles.additive(errors)
        )
    assert simulation.passed(plan)


def test_layers_that_cost_nothing_are_not_kept_for_that() -> None:
    """Of plans of equal cost the smallest that passed is the answer."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        needed = rng.sample(range(30), 3)
        asked = replace(oracles.problem(30), costs=[rng.choice((0.0, 1.0)) for _ in range(30)])
        scores = [rng.random() for _ in range(30)]
        simulation = Simulation(30, oracles.monotone(needed), scores)
        plan = simulation.run(Guided().search(asked))
        judged = [t.proposal.plan for t in simulation.trials if simulation.passed(t.proposal.plan)]
        price = sum(asked.costs[layer] for layer in plan.indices)
        assert not any(
            each < plan and sum(asked.costs[layer] for layer in each.indices) <= price
            for each in judged
        )


def test_a_ranking_that_misleads_about_the_limit_costs_trials_only() -> None:
    """Scores above the tolerance for layers that need not stay are found out."""
    needed = frozenset((5, 150, 299))
    scores = [0.5 if layer in needed else 2.0 for layer in range(300)]
    plan, simulation = oracles.certified(
        Guided(), oracles.problem(300), oracles.monotone(needed), scores
    )
    assert plan.kept == needed
    assert simulation.count() <= 90


def engine(size: int) -> Problem:
    """Return a problem whose trials are builds."""
    return replace(oracles.problem(size), builds=True)


def worst(errors: Sequence[float]) -> Oracle:
    """Let the worst of the low layers be the error: such errors do not add up."""
    return lambda kept: oracles.outcome(
        max((error for layer, error in enumerate(errors) if layer not in kept), default=0.0)
    )


def test_an_emulator_that_misses_culprits_is_not_asked_again() -> None:
    """Where keeping what it adds does not help, no third choice of the emulator is built."""
    size, culprits = 200, {3, 50, 51, 120, 170, 199}
    seen = [1.5 if i in {3, 120, 199} else 0.05 + i / 1000 for i in range(size)]
    true = [1.6 if i in culprits else error for i, error in enumerate(seen)]
    simulation = Simulation(size, worst(true), emulator=worst(seen))
    assert simulation.run(Guided().search(engine(size))).kept == culprits
    asked = [trial.proposal for trial in simulation.trials if trial.proposal.kind is Kind.JUDGE]
    assert sum("emulator chooses" in proposal.reason for proposal in asked) <= 2
    assert len(asked) <= 40


def test_too_large_a_choice_is_halved_along_the_ranking() -> None:
    """Where the emulator keeps 60 layers too many, the prefix that does is found by halving."""
    size, needed = 200, set(range(4))
    seen = [3.0 - i / 100 if i < 64 else 0.1 for i in range(size)]
    true = [3.0 if i in needed else 0.5 for i in range(size)]
    simulation = Simulation(size, worst(true), emulator=worst(seen))
    assert simulation.run(Guided().search(engine(size))).kept == needed
    assert simulation.count() <= 18


@pytest.mark.parametrize("workers", [4, 16])
@pytest.mark.parametrize("kept", [3, *nightly(40)])
def test_workers_that_are_left_look_for_the_length_of_the_ranking(kept: int, workers: int) -> None:
    """Where the emulator is far off, several workers find the right number in fewer rounds."""
    size = 200
    seen = [1.5 - i / 1000 for i in range(size)]
    true = [3.0 if i < kept else 0.5 for i in range(size)]
    rounds = {}
    for count in (1, workers):
        batches: list[tuple[Proposal, ...]] = []
        simulation = Simulation(size, worst(true), emulator=worst(seen))
        asked = replace(engine(size), workers=count)
        found = simulation.run(oracles.batched(Guided().search(asked), batches))
        assert found.kept == set(range(kept))
        builds = [batch for batch in batches if batch[0].kind is Kind.JUDGE]
        assert all(len(batch) <= count for batch in builds)
        rounds[count] = len(builds)
    assert rounds[workers] <= {4: 0.75, 16: 0.6}[workers] * rounds[1]


@pytest.mark.parametrize("harmful", [1, 2, 3])
@pytest.mark.parametrize("figures", [True, False])
@pytest.mark.parametrize("workers", [4, 16])
def test_groups_that_pass_one_by_one_and_not_together_are_told_apart(
    workers: int, figures: bool, harmful: int
) -> None:
    """Most of two blocks may run low, but not all: what several workers found is undone."""
    size, blocks = 64, {*range(10, 18), *range(40, 48)}
    scores = [i / size for i in range(size)]

    def judge(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(2.0 if len(blocks & kept) < harmful else 0.1)

    oracle = judge if figures else oracles.without_figures(judge)
    asked = replace(oracles.problem(size, oracles.TOLERANCE if figures else None), workers=workers)
    plan, simulation = oracles.certified(Guided(), asked, oracle, scores)
    assert simulation.passed(plan)
    assert len(plan) == harmful


def test_what_has_no_verdict_does_not_hide_what_has() -> None:
    """Where three builds of ten fail at random, the rest still shows what is needed."""
    needed, count = {17, 40, 55}, 0
    for seed in range(4):
        oracle = oracles.flaky(oracles.monotone(needed), 64, seed, share=0.3)
        plan, simulation = oracles.certified(Guided(), oracles.problem(64), oracle)
        assert needed <= plan.kept
        count += simulation.count()
    assert count <= 240
