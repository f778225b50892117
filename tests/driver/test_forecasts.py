"""Certificates in which forecasts stand for builds: what they claim, and how often that is so."""

import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples, nightly
from oracles import Oracle, Simulation, outcome
from precision_bisect.options import Certify
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.confirmed_forecasts import (
    LEAST_FAR,
    RISK,
    WRONG,
    confirmed,
    sample_of,
    wrong_of,
)
from precision_bisect.search.certificate.judged_trials import JudgedTrials, noting
from precision_bisect.search.certificate.proving import Terms, certificate
from precision_bisect.search.certificate.sparing import sparing
from precision_bisect.search.combinators import feed
from precision_bisect.search.driver import Driver
from precision_bisect.trial import (
    Identity,
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
)
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Simulated, by, driver_of

FURTHER = 4
"""Layers beside the kept ones; nobody needs them."""
FAR = [3.0 + i for i in range(14)]


class Certified(NamedTuple):
    """What became of an answer: the plan, what is claimed of it, and the trials."""

    plan: Plan
    proof: Certificate
    trials: Sequence[Trial]

    @property
    def builds(self) -> list[Plan]:
        """The plans that the certificate had built."""
        return [t.proposal.plan for t in self.trials[2:] if t.proposal.kind is not Kind.PREDICT]


def dropping(errors: Sequence[float]) -> Oracle:
    """Let a plan have the largest error of the kept layers that it lacks, at least 0.3."""
    return lambda kept: outcome(max([0.3, *(e for i, e in enumerate(errors) if i not in kept)]))


def certified(
    true: Sequence[float],
    forecast: Sequence[float] | Oracle,
    *,
    seed: int = 0,
    workers: int = 1,
    known: Sequence[Plan] = (),
) -> Certified:
    """Certify the plan of the first layers, whose drops have these errors.

    The search has built it, the plan of none, and those that are `known`.
    """
    size = len(true) + FURTHER
    answer, ends = Plan.of(range(len(true))), (Plan.all_high(size), Plan.of(()))
    emulator = dropping(forecast) if isinstance(forecast, Sequence) else forecast
    simulation = Simulation(size, dropping(true), emulator=emulator)
    asked = replace(oracles.problem(size, seed=seed), builds=True, workers=workers)
    seen = JudgedTrials(tolerance=asked.tolerance, size=size)

    def course() -> Search[Plan]:
        yield tuple(Proposal(plan=plan) for plan in (*ends, *known, answer))
        return (yield from certify(asked, answer, "forecasts", seen))

    plan = simulation.run(noting(course(), seen))
    told = [Proposal(plan=end) for end in ends]
    trials = [Trial(proposal=each, outcome=simulation.answer(each)) for each in told]
    trials += simulation.trials
    read = JudgedTrials(tolerance=asked.tolerance, size=size).having(trials)
    terms = Terms(mode="forecasts", untested="not tried", seed=seed)
    return Certified(plan, certificate(plan, read, asked.names, terms), trials)


def needless(found: Certified, true: Sequence[float]) -> int:
    """Return how many of the predicted layers can go."""
    names = {f"layer{i}": error for i, error in enumerate(true)}
    return sum(names[layer] <= oracles.TOLERANCE for layer in found.proof.predicted)


def test_far_forecasts_stand_once_a_sample_is_built() -> None:
    """Of 14 drops forecast to fail by far six are built; the others are called predicted."""
    found = certified(FAR, FAR)
    proof = found.proof
    drawn = sample_of(len(FAR))
    # The answer passed in a build of its own, before.
    assert (6, drawn + 1) == (drawn, len(found.builds))
    assert (drawn, len(FAR) - drawn, 0) == tuple(
        map(len, (proof.checked, proof.predicted, proof.unchecked))
    )
    assert (False, False, True) == (
        proof.minimal,
        proof.minimal_at_limit,
        proof.minimal_by_forecasts,
    )
    told = proof.forecasts
    assert told is not None
    # The plan of nothing failed as it was forecast, too; the answer's forecast is no test.
    assert (drawn + 1 + 1, drawn, 1 - RISK) == (told.builds, told.drawn, told.confidence)
    assert told.builds == told.right
    assert wrong_of(len(FAR), drawn) == told.wrong_at_most
    predicted = [need for need in proof.evidence if need.how == "predicted"]
    assert {need.error for need in predicted} <= set(FAR)
    assert {None} == {need.needed for need in predicted}


def test_what_may_pass_is_built_first_and_goes() -> None:
    """A drop near the tolerance is built; one that passes is taken out, and the rest certified."""
    true = [*FAR, 0.9, 1.1, 1.2]
    found = certified(true, [*FAR, 1.2, 1.1, 0.9])
    assert Plan.of({*range(len(true))} - {14}) == found.plan
    answer = Plan.of(range(len(true)))
    assert [answer, *(answer.without((i,)) for i in (16, 15, 14))] == [*found.builds[:4]]
    without = [found.plan.without((i,)) for i in (15, 16)]
    assert {*without} <= {*found.builds}
    assert found.proof.minimal_by_forecasts


def test_one_wrong_forecast_has_every_drop_built() -> None:
    """A build that contradicts a forecast by far ends all of them; the layer goes."""
    found = certified([*FAR[1:], 0.5], [*FAR[1:], 8.0], known=[Plan.of(range(13))])
    assert Plan.of(range(13)) == found.plan
    assert (True, []) == (found.proof.minimal, found.proof.predicted)


def test_forecasts_that_never_said_pass_do_not_stand() -> None:
    """An emulator that calls everything a failure, rightly or not, is confirmed in nothing."""
    found = certified(FAR, lambda kept: outcome(5.0 if len(kept) < 18 else 0.0))
    assert (True, []) == (found.proof.minimal, found.proof.predicted)


@pytest.mark.parametrize("forecast", [TrialStatus.BUILD_FAILED, TrialStatus.FINISHED])
def test_without_figures_every_drop_is_built(forecast: TrialStatus) -> None:
    """Neither a forecast that failed nor one without an error stands for a build."""
    verdict = outcome(5.0).verdict if forecast is TrialStatus.FINISHED else None
    found = certified(FAR, lambda _: Outcome(status=forecast, verdict=verdict))
    assert (True, []) == (found.proof.minimal, found.proof.predicted)


def test_the_spread_of_forecasts_moves_what_is_far() -> None:
    """Where builds come to half of what was forecast, a forecast of three times is near."""
    errors = [1.4, 1.6, 2.0, *(10.0 + i for i in range(12))]
    found = certified(errors, [2 * error for error in errors])
    assert {"layer0", "layer1", "layer2"} <= {*found.proof.checked}
    assert found.proof.predicted


@pytest.mark.parametrize("lacking", [0, 1])
def test_one_build_short_nothing_is_predicted(lacking: int) -> None:
    """As many drops as the sample has must be built, in its order, for the others to stand."""
    found = certified(FAR, FAR)
    drawn = [each for each in found.trials if len(each.proposal.plan) == len(FAR) - 1]
    built = [each for each in drawn if each.proposal.kind is not Kind.PREDICT]
    left_out = built[len(built) - lacking :]
    asked = oracles.problem(len(FAR) + FURTHER)
    read = JudgedTrials(tolerance=asked.tolerance, size=len(FAR) + FURTHER)
    read.having(each for each in found.trials if each not in left_out)
    answer, terms = Plan.of(range(len(FAR))), Terms(mode="forecasts", untested="not tried")
    proof = certificate(answer, read, asked.names, terms)
    assert sample_of(len(FAR)) == len(built)
    predicted = 0 if lacking else len(FAR) - len(built)
    assert (predicted, not lacking) == (len(proof.predicted), proof.minimal_by_forecasts)


@pytest.mark.parametrize("drops", range(1, 9))
def test_a_sample_promises_what_counting_says(drops: int) -> None:
    """Over all samples, more wrong ones than are named stay unseen in 10% of the cases at most."""
    for drawn in range(drops + 1):
        most = wrong_of(drops, drawn)
        for wrong in range(drops + 1):
            samples = list(combinations(range(drops), drawn))
            unseen = sum(min(sample, default=drops) >= wrong for sample in samples)
            assert (unseen > RISK * len(samples)) == (wrong <= most)
    assert wrong_of(drops, sample_of(drops)) <= WRONG * drops
    assert not sample_of(drops) or wrong_of(drops, sample_of(drops) - 1) > WRONG * drops


ERRORS = st.lists(st.tuples(st.floats(0.1, 30.0), st.floats(0.1, 30.0)), min_size=1, max_size=12)


@given(errors=ERRORS, seed=st.integers(0, 99), workers=st.sampled_from([1, 3]))
def test_what_a_build_calls_needed_is(
    errors: Sequence[tuple[float, float]], seed: int, workers: int
) -> None:
    """Whatever the emulator says: the answer passes, no layer is unknown, no check is false."""
    true, forecast = zip(*errors, strict=True)
    found = certified(true, forecast, seed=seed, workers=workers)
    gone = [error for i, error in enumerate(true) if i not in found.plan.kept]
    assert all(error <= oracles.TOLERANCE for error in gone)
    proof = found.proof
    assert [] == proof.unchecked
    assert all(true[int(name.removeprefix("layer"))] > 1.0 for name in proof.checked)
    assert all(forecast[int(name.removeprefix("layer"))] >= LEAST_FAR for name in proof.predicted)
    assert not proof.predicted or proof.forecasts is not None


@given(errors=st.lists(st.floats(1.01, 30.0), min_size=4, max_size=16), seed=st.integers(0, 99))
def test_forecasts_that_are_too_low_predict_nothing_falsely(
    errors: Sequence[float], seed: int
) -> None:
    """Where the engine is worse than the emulator says, what is predicted is needed."""
    found = certified(errors, [0.5 * error for error in errors], seed=seed)
    assert found.plan.kept == {*range(len(errors))}
    assert [] == found.proof.unchecked


def test_forecasts_that_take_longer_than_builds_are_not_asked_for() -> None:
    """Builds of 2 s and forecasts of 9 s: after the first ones no further plan is forecast."""
    seen = JudgedTrials(tolerance=oracles.TOLERANCE, size=SIZE)
    asked: list[Plan] = []

    def search() -> Search[None]:
        for layer in range(SIZE):
            yield (Proposal(plan=Plan.of((layer,))),)

    def judge(batch: Sequence[Proposal]) -> tuple[Outcome, ...]:
        asked.extend(each.plan for each in batch if each.kind is Kind.PREDICT)
        return tuple(
            replace(outcome(5.0), wall_s=9.0 if each.kind is Kind.PREDICT else 2.0)
            for each in batch
        )

    feed(noting(sparing(search(), seen), seen), judge)
    assert [Plan.of((0,))] == asked
    assert SIZE == len(seen.built)


RUNS = 150


def false_claims(errors: Callable[[random.Random], tuple[list[float], list[float]]]) -> float:
    """Return the share of runs in which more can go than is claimed at most."""
    false = 0
    for seed in range(RUNS):
        true, forecast = errors(random.Random(seed))
        found = certified(true, forecast, seed=seed)
        most = found.proof.forecasts.wrong_at_most if found.proof.forecasts else 0
        false += needless(found, true) > most
    return false / RUNS


def most_by_chance() -> float:
    """Return the promised share of false claims, and three standard deviations more."""
    return RISK + 3 * math.sqrt(RISK * (1 - RISK) / RUNS)


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", [1, 5, 6, 12])
def test_what_is_predicted_is_right_as_often_as_said(wrong: int) -> None:
    """Of 20 drops some pass though they are forecast to fail by far: claims are rarely false."""

    def errors(rng: random.Random) -> tuple[list[float], list[float]]:
        luck = rng.sample([True] * wrong + [False] * (20 - wrong), 20)
        return [0.5 if passes else 9.0 for passes in luck], [9.0] * 20

    assert false_claims(errors) <= most_by_chance()


@pytest.mark.parametrize("noise", [0.3, *nightly(0.05, 1.0)])
def test_noisy_forecasts_are_right_as_often_as_said(noise: float) -> None:
    """Forecasts off by lognormal noise: near ones are built, claims on others are rarely false."""

    def errors(rng: random.Random) -> tuple[list[float], list[float]]:
        true = [math.exp(rng.uniform(-0.5, 3.0)) for _ in range(16)]
        return true, [error * math.exp(rng.gauss(0.0, noise)) for error in true]

    assert false_claims(errors) <= most_by_chance()


FINITE = [9.0, 0.02, 7.0, 6.0, 0.01, 5.0, 8.0, 4.0, 3.5, 0.03, 12.0, 11.0]
CULPRITS = frozenset(i for i, error in enumerate(FINITE) if error > 1)


def whole(
    path: Path, engine: Oracle, emulator: Oracle, mode: Certify, budget: Budget | None = None
) -> tuple[Ending | None, Driver, int]:
    """Run the whole flow; return its ending, None where the budget ended it, and the builds."""
    backend = Simulated(by(engine))
    driver, ledger = driver_of(path, backend, emulator=Simulated(by(emulator)), budget=budget)
    asked = replace(oracles.problem(SIZE), builds=True)
    ending: Ending | None = None
    with ledger, suppress(BudgetSpent):
        ending = driver.run(flow(asked, Guided(), Course(certify=mode, curve=True)))
    return ending, driver, len(backend.built)


def test_a_search_is_spared_what_is_forecast_to_fail_by_far(tmp_path: Path) -> None:
    """With right forecasts the same answer takes fewer builds."""
    rule = oracles.additive(FINITE)
    builds: dict[Certify, int] = {}
    for mode in ("forecasts", "full"):
        (folder := tmp_path / mode).mkdir()
        ending, _, builds[mode] = whole(folder, rule, rule, mode)
        assert ending is not None
        assert (Status.FOUND, CULPRITS) == (ending.status, ending.plan and ending.plan.kept)
    assert builds["full"] - builds["forecasts"] >= len(CULPRITS) - sample_of(len(CULPRITS)) - 1


def test_a_search_that_forecasts_have_misled_is_made_again(tmp_path: Path) -> None:
    """The emulator calls nine of twelve layers culprits; by builds three are, and are kept."""
    few = frozenset((0, 2, 5))
    rule = oracles.additive([error if i in few else 0.01 for i, error in enumerate(FINITE)])
    ending, driver, _ = whole(tmp_path, rule, oracles.additive(FINITE), "forecasts")
    assert ending is not None
    assert (Status.FOUND, few) == (ending.status, ending.plan and ending.plan.kept)
    drops = [Plan.of(few - {layer}) for layer in few]
    assert all(driver.outcome_of(drop, SampleSet.JUDGED) for drop in drops)


@examples(6)
@given(after=st.integers(1, 30), wrong=st.sets(st.integers(0, SIZE - 1), max_size=3))
def test_a_run_cut_anywhere_goes_on_the_same(after: int, wrong: set[int]) -> None:
    """Resumed from the ledger it makes the same trials, and comes to the same end."""
    rule = oracles.additive(FINITE)
    emulator = oracles.additive([0.5 if i in wrong else each for i, each in enumerate(FINITE)])
    found: list[tuple[Ending | None, set[Identity]]] = []
    for most in (None, after):
        with TemporaryDirectory() as folder:
            if most is not None:
                whole(Path(folder), rule, emulator, "forecasts", Budget(max_trials=most))
            ending, driver, _ = whole(Path(folder), rule, emulator, "forecasts")
            found.append((ending, {trial.proposal.identity for trial in driver.trials}))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("phase", "kind", "draw"),
    [(Phase.CURVE, Kind.JUDGE, 1 << 16), (Phase.SPEED, Kind.AGAIN, 0)],
)
def test_points_of_the_curve_and_latencies_take_nothing_back(
    phase: Phase, kind: Kind, draw: int
) -> None:
    """What the search did not see cannot contradict a forecast that its certificate rests on."""
    found = certified(FAR, FAR)
    assert found.proof.predicted
    plan = found.trials[0].proposal.plan
    extra = Proposal(plan=plan, phase=phase, kind=kind, draw=draw)
    told = outcome(0.3 if found.trials[0].outcome.failed else 1e3)
    seen = JudgedTrials(tolerance=1.0, size=SIZE).having(found.trials)
    before = confirmed(seen)
    assert before == confirmed(seen.having([Trial(proposal=extra, outcome=told)]))
    other = replace(extra, phase=Phase.RECHECK, kind=Kind.REBUILD)
    seen.having([Trial(proposal=other, outcome=told)])
    assert len({each.verdict for each in seen.outcomes(plan)}) == 2
