"""Fewer layers in the place of a kept unit of several."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from oracles import Oracle, Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Outcome, Proposal, TrialStatus, Verdict
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion, Lowered
from precision_bisect_strategies.exchanging import exchange
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.offers import PATIENCE
from precision_bisect_strategies.units import Unit

LIMIT = oracles.TOLERANCE
BLOCK = tuple(range(10, 20))
UNRESOLVED = Outcome(status=TrialStatus.BUILD_FAILED)
UNEQUAL = [0.02 * 1.3**i for i in range(11)]
SINGLES: list[Unit] = [(layer,) for layer in range(10)]


def state(
    order: Sequence[Unit],
    kept: Mapping[int, float],
    lowered: list[Lowered],
    error: float,
    workers: int = 1,
    *,
    costs: Mapping[Unit, float] = MappingProxyType({}),
    scores: Sequence[float] | None = None,
    noise: float = 0.0,
) -> Demotion:
    """Return a state whose ranking says that the last units add most, a tenth more each.

    Unless there are `scores`; a unit costs what its layers are, or one of the `costs`.
    """
    return Demotion(
        order=order,
        beliefs=Beliefs(
            scores or [0.02 * 1.1**i for i in range(len(order))],
            [costs.get(unit, float(len(unit))) for unit in order],
            room=LIMIT,
            expected=3,
        ),
        noise=noise,
        limit=LIMIT,
        plan=Plan.of(layer for i in kept for layer in order[i]),
        error=error,
        low_error=2.0,
        suspects=[],
        workers=workers,
        kept=dict(kept),
        lowered=lowered,
    )


def adding(errors: Mapping[Unit, float], rest: float = 0.0) -> Oracle:
    """Let each unit add its error once any of it is low; all plans add the `rest`."""

    def judge(kept: frozenset[int]) -> Outcome:
        low = (error for unit, error in errors.items() if not kept.issuperset(unit))
        return oracles.outcome(rest + sum(low))

    return judge


def ended(before: Demotion) -> Search[Plan]:
    """Run the exchanges, and return the plan."""
    yield from exchange(before)
    return before.plan


def exchanged(before: Demotion, oracle: Oracle) -> list[frozenset[int]]:
    """Run the exchanges; return what was kept in each build."""
    simulation = Simulation(20, oracle)
    simulation.run(exchange(before))
    return [trial.proposal.plan.kept for trial in simulation.trials]


def test_many_are_kept_at_a_time_and_divided_until_one_adds_enough() -> None:
    """The ranking says that the one that does is among the mildest; halving finds it."""
    errors: dict[Unit, float] = {(i,): 0.01 for i in range(10)} | {(1,): 0.32, BLOCK: 0.4}
    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.41)], 0.9, scores=UNEQUAL)
    builds = exchanged(before, adding(errors, 0.49))
    assert max(len(kept) for kept in builds) >= 5
    assert len(builds) < 10
    assert before.plan.kept == {1}
    assert before.kept == pytest.approx({1: 0.32})
    assert before.error == pytest.approx(0.98)


def test_with_more_workers_several_parts_are_tried_at_a_time() -> None:
    """Parts that have no layer in common: each tells something of its own."""
    errors: dict[Unit, float] = {(i,): 0.02 for i in range(10)} | {(1,): 0.32, BLOCK: 0.4}
    order: list[Unit] = [*SINGLES, BLOCK]
    low: list[Lowered] = [(list(range(10)), 0.5)]
    before = state(order, {10: 0.4}, low, 0.9, 4, scores=UNEQUAL)
    alone = state(order, {10: 0.4}, low, 0.9, scores=UNEQUAL)
    batches: list[tuple[Proposal, ...]] = []
    Simulation(20, adding(errors, 0.4)).run(oracles.batched(ended(before), batches))
    assert before.plan.kept == {1}
    first = [proposal.plan.kept for proposal in batches[0]]
    assert len(first) > 1
    assert sum(map(len, first)) == len(frozenset().union(*first))
    assert len(batches) < len(exchanged(alone, adding(errors, 0.4)))


def test_that_all_do_not_add_enough_takes_hardly_a_build() -> None:
    """The unit stays: no single layer can add more than all of them together."""
    errors: dict[Unit, float] = {(i,): 0.01 for i in range(10)} | {BLOCK: 0.4}
    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9)
    assert len(exchanged(before, adding(errors, 0.8))) <= 2
    assert before.plan.kept == {*BLOCK}


def test_after_as_many_in_vain_as_patience_has_no_others_are_tried() -> None:
    """Layers that should add much, one by one, and add nothing."""
    order: list[Unit] = [*((layer,) for layer in range(200)), tuple(range(200, 210))]
    before = state(order, {200: 0.4}, [(list(range(200)), 0.9)], 0.9)
    before.beliefs.learn_sum(list(range(200)), 20.0)
    simulation = Simulation(210, adding({order[200]: 0.4}, 0.9))
    simulation.run(exchange(before))
    assert simulation.count() == PATIENCE
    assert before.plan.kept == set(range(200, 210))


def test_those_that_cannot_be_measured_are_not_the_last() -> None:
    """Keeping the likeliest does not prevent an overflow: others are tried."""

    def judge(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(0.9 if 0 in kept else math.inf)

    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9, scores=UNEQUAL)
    builds = exchanged(before, judge)
    assert 0 not in builds[0]
    assert before.plan.kept == builds[-1] == {0}


def test_several_that_were_measured_to_add_enough_take_its_place() -> None:
    """Neither of two does alone; together they surely do."""
    errors: dict[Unit, float] = {(0,): 0.2, (1,): 0.2, BLOCK: 0.4}
    before = state([(0,), (1,), BLOCK], {2: 0.4}, [([0], 0.2), ([1], 0.2)], 0.95)
    assert exchanged(before, adding(errors, 0.55)) == [{0, 1}]
    assert before.plan.kept == {0, 1}


def test_the_room_that_an_exchange_makes_is_used() -> None:
    """One layer lets a unit go, and holds back so much that another unit fits, too."""
    small = (7, 8, 9)
    errors: dict[Unit, float] = {(0,): 0.1, (1,): 0.6, small: 0.1, BLOCK: 0.3}
    before = state([(0,), (1,), small, BLOCK], {2: 0.1, 3: 0.3}, [([0], 0.1), ([1], 0.6)], 0.95)
    first, *others = exchanged(before, adding(errors, 0.25))
    assert first in ({1, *small}, {1, *BLOCK})
    assert others == [{1}]
    assert before.plan.kept == {1}


@pytest.mark.parametrize("low", [[], [(0, 1, 2), (3, 4, 5)]])
def test_where_only_larger_units_are_low_there_is_none(low: Collection[Unit]) -> None:
    """A unit of two stays; so does one that should fit, once dropping it has failed."""
    order: list[Unit] = [*low, (6, 7), (8, 9)]
    first = len(low)
    groups: list[Lowered] = [([i], 0.4) for i in range(first)]
    before = state(order, {first: 0.3, first + 1: 0.01}, groups, 0.95)
    assert exchanged(before, oracles.monotone([6, 7, 8, 9])) == []
    assert before.plan.kept == {6, 7, 8, 9}


def test_one_without_a_verdict_is_not_asked_again_and_others_are() -> None:
    """A build with nine in place of the unit times out: fewer of them are tried."""

    def judge(kept: frozenset[int]) -> Outcome:
        if len(kept) > 4:
            return UNRESOLVED
        return oracles.outcome(0.9 if 9 in kept else 1.3)

    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9)
    builds = exchanged(before, judge)
    assert len(builds) == len(set(builds))
    assert before.plan.kept == {9}


def test_one_that_was_measured_to_do_but_has_no_verdict_is_asked_once() -> None:
    """The unit stays."""
    before = state([(0,), (1,), BLOCK], {2: 0.4}, [([0], 0.5), ([1], 0.0)], 0.95)
    assert exchanged(before, lambda _: UNRESOLVED) == [{0}]
    assert before.plan.kept == {*BLOCK}


def test_what_saves_most_of_those_that_pass_is_kept() -> None:
    """Four do together and no two of them: others that do not save as much come to nothing."""
    order: list[Unit] = [*((layer,) for layer in range(8)), tuple(range(10, 20))]
    errors: dict[Unit, float] = {(i,): 0.1 for i in range(8)} | {order[8]: 0.4}
    before = state(order, {8: 0.4}, [(list(range(8)), 0.8)], 0.95)
    builds = exchanged(before, adding(errors, 0.15))
    passed = [kept for kept in builds if adding(errors, 0.15)(kept).passed]
    assert before.plan.kept == min(passed, key=len)
    assert len(before.plan.kept) < 10


def test_more_layers_than_the_unit_has_are_no_exchange() -> None:
    """All twenty do only together: they are measured, and the unit stays."""
    order: list[Unit] = [*((layer,) for layer in range(20)), tuple(range(20, 30))]
    errors: dict[Unit, float] = {(i,): 0.03 for i in range(20)} | {order[20]: 0.4}
    before = state(order, {20: 0.4}, [(list(range(20)), 0.6)], 0.95)
    oracle = adding(errors, 0.35)
    assert oracle(frozenset(range(20))).passed
    simulation = Simulation(30, oracle)
    simulation.run(exchange(before))
    assert before.plan.kept == set(range(20, 30))
    assert simulation.count() <= 4
    larger = [trial.proposal for trial in simulation.trials if len(trial.proposal.plan) >= 10]
    assert all("how much" in proposal.reason for proposal in larger)


def test_an_exchange_is_worth_the_proofs_that_it_voids() -> None:
    """One layer less is worth it where one other is kept, not where a hundred are."""
    small = (200, 201, 202)
    few: list[Unit] = [(0,), (1,), small]
    many: list[Unit] = [*few, *((layer,) for layer in range(2, 102))]
    lowered: list[Lowered] = [([0], 0.2), ([1], 0.2)]
    kept = dict.fromkeys(range(2, 103), 0.3)
    assert len(exchanged(state(few, {2: 0.3}, lowered, 0.95), oracles.monotone([0, 1]))) == 1
    assert exchanged(state(many, kept, lowered, 0.95), oracles.monotone([0, 1])) == []


def test_what_layers_cost_counts_not_how_many_they_are() -> None:
    """One layer that costs more than the unit does not take its place; dearer units do go."""
    order: list[Unit] = [(0,), (1,), (2, 3)]
    lowered: list[Lowered] = [([0], 0.5), ([1], 0.0)]
    dear = state(order, {2: 0.3}, lowered, 0.95, costs={(0,): 9.0})
    assert exchanged(dear, oracles.monotone([0])) == []
    several: list[Lowered] = [([0], 0.2), ([1], 0.2)]
    cheap = state(order, {2: 0.3}, several, 0.95, costs={(2, 3): 9.0})
    assert exchanged(cheap, oracles.monotone([0, 1])) == [{0, 1}]


def test_noise_is_no_reason_to_look() -> None:
    """What is needed may be noise: the unit may fit without."""
    errors: dict[Unit, float] = {(i,): 0.01 for i in range(10)} | {(9,): 0.3, BLOCK: 0.15}
    quiet = state([*SINGLES, BLOCK], {10: 0.15}, [(list(range(10)), 0.4)], 0.95)
    noisy = state([*SINGLES, BLOCK], {10: 0.15}, [(list(range(10)), 0.4)], 0.95, noise=0.06)
    assert exchanged(quiet, adding(errors, 0.56))
    assert exchanged(noisy, adding(errors, 0.56)) == []


def test_where_scores_are_infinite_nothing_is_looked_for() -> None:
    """They tell nothing of what runs low."""
    scores = [*(0.02 * 1.1**i for i in range(10)), math.inf]
    before = state([*SINGLES, BLOCK], {10: 0.4}, [(list(range(10)), 0.5)], 0.9, scores=scores)
    assert exchanged(before, oracles.monotone([9])) == []


def test_one_exchange_may_follow_another() -> None:
    """Two units give way to a layer each; what the first was replaced by is known to be low."""
    other = tuple(range(20, 30))
    order: list[Unit] = [*SINGLES, BLOCK, other]
    errors: dict[Unit, float] = {(i,): 0.01 for i in range(10)}
    errors |= {(8,): 0.4, (9,): 0.4, BLOCK: 0.4, other: 0.4}
    scores = [0.001 * 2.0**i for i in range(12)]
    before = state(order, {10: 0.4, 11: 0.4}, [(list(range(10)), 0.88)], 0.95, scores=scores)
    exchanged(before, adding(errors, 0.07))
    assert before.plan.kept == {8, 9}
    assert set(before.kept) == {8, 9}
    assert before.error == pytest.approx(0.95)
    assert sorted(i for group, _ in before.lowered for i in group) == [*range(8), 10, 11]
    assert sum(total for _, total in before.lowered) == pytest.approx(0.88)


@pytest.mark.parametrize("workers", [2, 4])
def test_what_is_kept_side_by_side_has_nothing_in_common(workers: int) -> None:
    """Also where it is to take the place of different units."""
    small = (20, 21, 22)
    order: list[Unit] = [*SINGLES, small, BLOCK]
    errors: dict[Unit, float] = {(i,): 0.05 for i in range(10)} | {small: 0.3, BLOCK: 0.4}
    before = state(order, {10: 0.3, 11: 0.4}, [(list(range(10)), 0.5)], 0.9, workers)
    batches: list[tuple[Proposal, ...]] = []
    Simulation(30, adding(errors, 0.4)).run(oracles.batched(ended(before), batches))
    for batch in batches:
        instead = [each.plan.kept - {*small, *BLOCK} for each in batch]
        assert sum(map(len, instead)) == len(frozenset().union(*instead))


errors_of_layers = st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.3]), min_size=4, max_size=16)
failing = st.sampled_from([None, math.inf, math.nan])


@given(
    errors=errors_of_layers,
    units=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    workers=st.integers(1, 4),
    strange=st.dictionaries(st.integers(0, 30), failing, max_size=4),
)
def test_exchanges_end_in_a_plan_that_passed_and_costs_no_more(
    errors: list[float], units: list[int], workers: int, strange: dict[int, float | None]
) -> None:
    """Whatever adds up, does not, overflows or has no verdict on the way."""
    starts = [len(errors) + sum(units[:i]) for i in range(len(units))]
    blocks = [tuple(range(at, at + size)) for at, size in zip(starts, units, strict=True)]
    order: list[Unit] = [*((layer,) for layer in range(len(errors))), *blocks]
    each = {(i,): error for i, error in enumerate(errors)} | dict.fromkeys(blocks, 0.2)
    rest = 0.95 - sum(errors)
    asked = 0

    def judge(kept: frozenset[int]) -> Outcome:
        nonlocal asked
        asked += 1
        odd = strange.get(asked, 0.0)
        usual = adding(each, rest)(kept)
        if odd is None:
            return UNRESOLVED
        return usual if odd == 0.0 else replace(usual, error=odd, verdict=Verdict.FAIL)

    first = {len(errors) + i: 0.2 for i in range(len(blocks))}
    before = state(order, first, [(list(range(len(errors))), sum(errors))], 0.95, workers)
    simulation = Simulation(sum(units) + len(errors), judge)
    simulation.run(exchange(before))
    passed = {trial.proposal.plan for trial in simulation.trials if trial.outcome.passed}
    assert before.plan in passed or before.plan.kept == {i for block in blocks for i in block}
    assert before.plan.kept == {layer for i in before.kept for layer in order[i]}
    assert len(before.plan) <= sum(units)
    assert simulation.count() <= 40


def builds(size: int) -> Problem:
    """Return a problem whose trials are builds."""
    return replace(oracles.problem(size), predicts=True)


def blocks(errors: dict[range, float], rest: float, size: int) -> Oracle:
    """Let each block cost its error once any of it is low; the other layers share `rest`."""
    inside = {layer for block in errors for layer in block}
    each = rest / (size - len(inside))

    def judge(kept: frozenset[int]) -> Outcome:
        low = set(range(size)) - kept
        found = sum(error for block, error in errors.items() if not low.isdisjoint(block))
        return oracles.outcome(found + each * len(low - inside))

    return judge


@pytest.mark.parametrize(("alone", "kept"), [(0.3, {30}), (0.13, set(range(10, 15)))])
def test_one_layer_takes_the_place_of_a_block(alone: float, kept: set[int]) -> None:
    """A block that the emulator prefers gives way to one layer that holds back enough, if so."""
    size = 40
    block, layer = range(10, 15), range(30, 31)
    oracle = blocks({block: 0.45, layer: alone}, 1.2 - 0.45 - alone, size)
    emulator = blocks({block: 0.6, layer: 0.18}, 0.42, size)
    simulation = Simulation(size, oracle, emulator=emulator)
    assert simulation.run(Guided().search(builds(size))).kept == kept
    assert simulation.count() <= 4


@pytest.mark.parametrize("workers", [1, 4])
def test_a_layer_tried_in_vain_in_the_place_of_a_block_is_not_the_last(workers: int) -> None:
    """The likeliest layer does not hold back enough; the next one does."""
    size = 40
    block, likely, unlikely = range(10, 15), range(30, 31), range(35, 36)
    oracle = blocks({block: 0.45, likely: 0.15, unlikely: 0.3}, 0.3, size)
    emulator = blocks({block: 0.6, likely: 0.1, unlikely: 0.09}, 0.41, size)
    simulation = Simulation(size, oracle, emulator=emulator)
    asked = replace(builds(size), workers=workers)
    assert simulation.run(Guided().search(asked)).kept == set(unlikely)
    reasons = [trial.proposal.reason for trial in simulation.trials]
    assert reasons.count("keep 1 in the place of 5") == 2
    assert simulation.count() <= 4 + workers
