"""What units add alone, measured where builds are noisy: which ones stay, and at what price."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Simulation
from precision_bisect.protocols import Problem
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.alone import BLOCK, PROBES, ranked_alone
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

    def __init__(self, errors: Sequence[float], *, share: float = 0.0, floor: float = 0.0) -> None:
        super().__init__(len(errors), oracles.additive(errors), scores=shuffled(errors))
        self._share, self._floor, self._random = share, floor, random.Random(0)

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


@given(errors_and_costs, st.sampled_from([1, 3, 16]))
@settings(max_examples=150, deadline=None)
def test_without_noise_it_is_the_best_by_error_per_cost(
    layers: list[tuple[float, float]], workers: int
) -> None:
    """What may go adds up to the limit at most, and what stays is worse than all of it."""
    errors, costs = [error for error, _ in layers], [cost for _, cost in layers]
    simulation = Simulation(len(errors), oracles.additive(errors))
    told = simulation.run(ranked_alone(asked(len(errors), workers=workers), rated(costs), 0.0))
    assert told is not None
    again, dropped = told
    order = [each.unit[0] for each in again]
    assert sorted(order) == list(range(len(errors)))
    assert costs == [each.cost for each in sorted(again)]
    assert sum(errors[layer] for layer in order[:dropped]) <= LIMIT * (1 + 1e-6)
    stays = [min(errors[layer] / costs[layer], 1e6) for layer in order[dropped:]]
    goes = [errors[layer] / costs[layer] for layer in order[:dropped]]
    assert min(stays, default=float("inf")) >= max(goes, default=0.0) * (1 - 1e-6)


def test_few_that_matter_cost_few_builds() -> None:
    """Blocks, and some twice their logarithm for each that stays; less where halves tell both."""
    size, bad = 800, (3, 77, 402, 640, 799)
    errors = [0.5 * LIMIT if layer in bad else 0.0004 * LIMIT for layer in range(size)]
    simulation = Simulation(size, oracles.additive(errors))
    told = simulation.run(ranked_alone(asked(size), rated([1.0] * size), 0.0))
    assert told is not None
    assert {each.unit[0] for each in told[0][-len(bad) :]} == set(bad)
    assert simulation.count() <= size // BLOCK + PROBES + 2 * 3 * len(bad)


def test_noise_that_does_not_shrink_is_no_case_for_it() -> None:
    """Where a block of nothing differs by as much, it ends after the first blocks."""
    size = 400
    simulation = Noisy([LIMIT / 200] * size, floor=0.1 * LIMIT)
    problem = asked(size, noise=0.1 * LIMIT)
    assert simulation.run(ranked_alone(problem, rated([1.0] * size), 0.0)) is None
    assert 2 * PROBES == simulation.count()


def heavy(size: int, seed: int, kept: int) -> list[float]:
    """Return heavy-tailed errors of which all but the largest `kept` are 0.9 of the limit."""
    rng = random.Random(seed)
    errors = [rng.lognormvariate(0, 2) for _ in range(size)]
    others = sum(sorted(errors)[:-kept])
    return [0.9 * LIMIT * error / others for error in errors]


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
