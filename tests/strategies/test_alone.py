"""What units add alone, measured where builds are noisy: which ones stay, and at what price."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Simulation
from precision_bisect.protocols import Problem
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus
from precision_bisect_strategies.alone import (
    CHECKED,
    PROBES,
    TWICE,
    checked,
    measurable,
    ranked_alone,
)
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.units import Rated

LIMIT = oracles.TOLERANCE
FAINT = 1e-9 * LIMIT


def asked(size: int, *, noise: float = FAINT, workers: int = 1) -> Problem:
    """Return the problem of an engine beside an emulator."""
    return replace(oracles.problem(size), predicts=True, noise=noise, workers=workers)


def rated(costs: Sequence[float]) -> list[Rated]:
    """Return single layers of these costs, about which nothing else is known."""
    return [Rated((layer,), 1.0, cost) for layer, cost in enumerate(costs)]


def shuffled(errors: Sequence[float]) -> list[float]:
    """Return the errors, each of another layer: what an emulator says that knows nothing."""
    return random.Random(7).sample(errors, len(errors))


class Noisy(Simulation):
    """Every build draws its noise: a share of its error, or the same `floor` for all.

    The emulator's ranking says nothing.
    """

    def __init__(
        self, errors: Sequence[float], *, share: float = 0.0, floor: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(len(errors), oracles.additive(errors), scores=shuffled(errors))
        self._share, self._floor, self._random = share, floor, random.Random(seed)

    def answer(self, proposal: Proposal) -> Outcome:
        """Return the outcome, noisy unless it is that of one of both ends."""
        if 0 < len(proposal.plan) < len(self.everything):
            self._known.pop(proposal.identity, None)
        return super().answer(proposal)

    def _evaluate(self, proposal: Proposal) -> Outcome:
        found = super()._evaluate(proposal)
        if proposal.kind is Kind.PREDICT or found.error is None:
            return found
        factor = 2.718 ** self._random.gauss(0, self._share)
        return oracles.outcome(found.error * factor + abs(self._random.gauss(0, self._floor)))


errors_and_costs = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 0.4 * LIMIT), st.sampled_from([0.0, 3 * LIMIT, float("inf")])),
        st.floats(0.1, 10),
    ),
    min_size=1,
    max_size=60,
)


def alone(
    simulation: Simulation,
    costs: Sequence[float],
    scores: Sequence[float] | None = None,
    *,
    workers: int = 1,
) -> tuple[list[Rated], int]:
    """Measure the units of a network along a line that says nothing of them.

    `scores` are errors of others, in any order; all are alike without them.
    """
    size = len(costs)
    scores = scores or [1.0] * size
    known = Beliefs(scores, costs, room=LIMIT, expected=max(size // 10, 1), exact=False)
    return simulation.run(ranked_alone(asked(size, workers=workers), rated(costs), known, 0.0))


@given(errors_and_costs, st.sampled_from([1, 3, 16]))
@settings(max_examples=150, deadline=None)
def test_each_unit_has_its_place_and_what_goes_is_believed_to_fit(
    layers: list[tuple[float, float]], workers: int
) -> None:
    """In the order of error per cost; one more would not fit. Nothing is measured twice."""
    errors, costs = [error for error, _ in layers], [cost for _, cost in layers]
    simulation = Simulation(len(errors), oracles.additive(errors))
    again, dropped = alone(simulation, costs, workers=workers)
    assert sorted(each.unit[0] for each in again) == list(range(len(errors)))
    assert costs == [each.cost for each in sorted(again)]
    assert [each.rate for each in again] == sorted(each.rate for each in again)
    sums = list(accumulate(each.rate * each.cost for each in again))
    assert not dropped or sums[dropped - 1] <= LIMIT * (1 + 1e-9)
    assert dropped == len(again) or sums[dropped] > LIMIT * (1 - 1e-9)
    groups = [trial.proposal.plan for trial in simulation.trials]
    assert len(groups) == len(set(groups)) <= 2 * len(errors)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_build_for_six_layers_comes_near_the_best(workers: int) -> None:
    """Of heavy-tailed errors hardly more is kept than must be, most often, by few builds."""
    size, kept, builds, best = 400, [], 0, 0
    for seed in range(6):
        errors = heavy(size, seed, 12)
        simulation = Simulation(size, oracles.additive(errors))
        again, _ = alone(simulation, [1.0] * size, errors, workers=workers)
        true = list(accumulate(errors[each.unit[0]] for each in again))
        kept.append(size - bisect_right(true, LIMIT))
        best += size - bisect_right(list(accumulate(sorted(errors))), LIMIT)
        builds += simulation.count()
    assert sorted(kept)[-2] <= 1.3 * best / 6
    assert sum(kept) <= 1.6 * best
    assert builds <= size


def test_few_that_matter_cost_few_builds() -> None:
    """Some twice their logarithm for each that stays, in whatever group it was."""
    size, bad = 800, (3, 77, 402, 640, 799)
    errors = [0.9 * LIMIT if layer in bad else 0.0004 * LIMIT for layer in range(size)]
    simulation = Simulation(size, oracles.additive(errors))
    again, dropped = alone(simulation, [1.0] * size)
    assert {each.unit[0] for each in again[-len(bad) :]} == set(bad)
    assert size - len(bad) <= dropped + 1
    assert simulation.count() <= 2 * 10 * len(bad)


def test_what_has_no_verdict_teaches_nothing() -> None:
    """Where a third of the builds fail, most heavy layers are still found."""
    size, bad, found = 200, (3, 77, 140), 0
    errors = [0.9 * LIMIT if layer in bad else 0.0004 * LIMIT for layer in range(size)]
    for seed in range(8):
        oracle = oracles.flaky(oracles.additive(errors), size, seed=seed, share=0.3)
        simulation = Simulation(size, oracle)
        again, dropped = alone(simulation, [1.0] * size)
        assert any(trial.outcome.verdict is None for trial in simulation.trials)
        found += len({each.unit[0] for each in again[-12:]}.intersection(bad))
        assert dropped >= size - 12
    assert found >= 14


def test_groups_that_cost_nothing_are_not_looked_into() -> None:
    """Keeping them is free; builds go where keeping less saves something."""
    size = 300
    errors = heavy(size, 0, 20)
    costs = [1.0 if layer % 2 else 1e-9 for layer in range(size)]
    simulation = Simulation(size, oracles.additive(errors))
    alone(simulation, costs, errors)
    assert simulation.count() <= size / 2


def test_noise_that_does_not_shrink_is_no_case_for_it() -> None:
    """Where a block of nothing differs by as much, that is seen from the first blocks."""
    size = 400
    simulation = Noisy([LIMIT / 200] * size, floor=0.1 * LIMIT)
    problem = asked(size, noise=0.1 * LIMIT)
    assert not simulation.run(measurable(problem, rated([1.0] * size), 0.0))
    assert 2 * PROBES == simulation.count()
    simulation = Noisy([LIMIT / 200] * size, share=0.1)
    assert simulation.run(measurable(problem, rated([1.0] * size), 0.0))


def test_a_tolerance_below_all_high_leaves_nothing_to_measure() -> None:
    """No build is asked for."""
    simulation = Simulation(10, oracles.additive([LIMIT] * 10))
    for tolerance in (None, 0.5 * LIMIT):
        problem = replace(asked(10), tolerance=tolerance)
        assert not simulation.run(measurable(problem, rated([1.0] * 10), 0.5 * LIMIT))
    assert not simulation.trials


def heavy(size: int, seed: int, kept: int) -> list[float]:
    """Return heavy-tailed errors of which all but the largest `kept` are 0.9 of the limit."""
    rng = random.Random(seed)
    errors = [rng.lognormvariate(0, 2) for _ in range(size)]
    others = sum(sorted(errors)[:-kept])
    return [0.9 * LIMIT * error / others for error in errors]


def believed_after_check(
    simulation: Simulation, scores: Sequence[float], *, noise: float = 0.1 * LIMIT, kept: int = 40
) -> float | None:
    """Return the correlation believed in after a check of the kept layers; None if not told."""
    size = len(scores)
    order = sorted(range(size), key=lambda layer: scores[layer])
    ranked = [Rated((layer,), scores[layer], 1.0) for layer in order]
    known = Beliefs(sorted(scores), [1.0] * size, room=LIMIT, expected=kept, exact=False)
    before = known.rho
    told = simulation.run(checked(asked(size, noise=noise), ranked, known, 0.0, kept))
    assert simulation.count() in ((CHECKED + TWICE,) if told else (2 * TWICE, CHECKED + TWICE))
    assert told or before == known.rho
    return known.rho if told else None


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_single_layers_tell_a_poor_ranking_from_a_right_one(share: float) -> None:
    """Noise or not; a scale and an exponent that are off are no sign of a poor one."""
    poor = []
    for seed in range(8):
        errors, rng = heavy(500, seed, 20), random.Random(100 + seed)
        bent = [2.0 * error**0.9 for error in errors]
        right = believed_after_check(Noisy(errors, share=share, seed=seed), bent)
        assert right is not None
        assert right > 0.95
        scores = [error * rng.lognormvariate(0, 2.0) for error in bent]
        poor += [believed_after_check(Noisy(errors, share=share, seed=seed), scores)]
    assert all(rho is not None for rho in poor)
    assert sum(rho or 0.0 for rho in poor) / len(poor) < 0.75


def test_single_layers_tell_as_much_where_each_is_heavy() -> None:
    """Two builds of one differ by more than noise at the limit seems to allow."""
    errors = [1e-3 * LIMIT] * 460 + [0.5 * LIMIT] * 40
    for seed in range(8):
        rho = believed_after_check(Noisy(errors, share=0.1, seed=seed), errors)
        assert rho is None or rho > 0.95


@pytest.mark.parametrize("floor", [0.003, 0.01, 0.1])
def test_single_layers_that_drown_in_noise_do_not_make_a_ranking_look_poor(floor: float) -> None:
    """Noise that is as large for all plans: those that it hides teach nothing."""
    told = []
    for seed in range(16):
        errors = heavy(500, seed, 20)
        noisy = Noisy(errors, share=0.1, floor=floor * LIMIT, seed=seed)
        told += [believed_after_check(noisy, errors)]
    assert all(rho is None or rho > 0.9 for rho in told)
    assert floor < 0.1 or sum(rho is None for rho in told) >= 12


def test_single_layers_that_add_nothing_or_less_teach_nothing() -> None:
    """Nor do those without a verdict, or that overflow; noise may exceed the limit."""

    class Odd(Simulation):
        answers = (Outcome(status=TrialStatus.TIMED_OUT), oracles.outcome(float("inf")))

        def _evaluate(self, proposal: Proposal) -> Outcome:
            return random.Random(proposal.plan.key).choice((*self.answers, oracles.outcome(0.0)))

    for noise in (0.1 * LIMIT, 3 * LIMIT):
        for network in (Odd, Simulation):
            simulation = network(60, oracles.additive([0.0] * 60), scores=[1.0] * 60)
            assert believed_after_check(simulation, [1.0] * 60, noise=noise, kept=50) is None


def test_errors_below_that_of_all_high_teach_nothing() -> None:
    """By noise a plan may come out better than all-high; its logarithm is nobody's business."""
    known = Beliefs([1.0] * 9, [1.0] * 9, room=LIMIT, expected=3, exact=False)
    before = known.rho
    known.learn_sum([1], -LIMIT, -2 * LIMIT)
    assert before == known.rho


def test_thousands_of_layers_and_noise_cost_a_tenth_in_builds() -> None:
    """With a ranking that is far off, too; all of them are forecast before any is measured."""
    size, kept = 2000, 12
    errors = heavy(size, 0, kept)
    rng = random.Random(3)
    simulation = Noisy(errors, share=0.1)
    simulation.scores = [error * rng.lognormvariate(0, 1.5) for error in errors]
    plan = simulation.run(Guided().search(asked(size, noise=0.1 * LIMIT)))
    assert sum(errors[layer] for layer in range(size) if layer not in plan.kept) < 1.3 * LIMIT
    assert simulation.count() <= size / 5
    assert len(plan) <= 4 * kept


@pytest.mark.parametrize("workers", [1, 4])
def test_a_useless_ranking_and_noise_cost_fewer_builds_than_layers(workers: int) -> None:
    """With noise of 10% sets are near the optimum, where layers on top of others tell nothing."""
    size, kept, sizes, builds = 300, 10, [], []
    for seed in range(4):
        errors = heavy(size, seed, kept)
        simulation = Noisy(errors, share=0.1)
        problem = asked(size, noise=0.1 * LIMIT, workers=workers)
        lower = replace(problem, tolerance=LIMIT)
        plan = simulation.run(Guided().search(lower))
        assert sum(errors[layer] for layer in range(size) if layer not in plan.kept) < 1.3 * LIMIT
        sizes.append(len(plan))
        builds.append(simulation.count())
    assert sum(sizes) <= 2 * kept * len(sizes)
    assert sum(builds) <= 0.9 * size * len(builds)


def test_a_good_ranking_is_never_given_up() -> None:
    """Noise or not: nothing is measured alone where the emulator knows the errors."""
    size, kept = 300, 10
    errors = heavy(size, 1, kept)
    simulation = Noisy(errors, share=0.1)
    simulation.scores = errors
    simulation.run(Guided().search(asked(size, noise=0.1 * LIMIT)))
    assert not any("add alone" in trial.proposal.reason for trial in simulation.trials)
