"""The curve: culprits are told from spread rounding, and a plan passes early."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import oracles
from oracles import TOLERANCE, Oracle, Simulation, outcome
from precision_bisect.plan import Plan
from precision_bisect.search.curve_points import complete
from precision_bisect.search.precision_curve import CURVE_EVALUATIONS, Curve, sweep
from precision_bisect.search.rounding_law import Law
from precision_bisect.search.sensitivity import LARGE
from precision_bisect.trial import Kind, Outcome, Trial, TrialStatus


def quadrature(errors: list[float], factor: float = 1.0) -> Oracle:
    """Let the errors of the layers that run low add up as independent ones do, times a factor."""
    return lambda kept: outcome(
        factor * math.hypot(*(each for i, each in enumerate(errors) if i not in kept))
    )


def swept(errors: list[float], factor: float = 1.0) -> tuple[Curve, Simulation]:
    """Sweep the curve of a simulated network whose samples are judged without copies."""
    curve = Curve(problem=oracles.problem(len(errors)), copies=False)
    simulation = Simulation(len(errors), quadrature(errors, factor))
    simulation.run(sweep(curve))
    return curve, simulation


def test_what_hurts_as_much_as_all_the_rest_is_a_culprit() -> None:
    """Two of twenty layers overflow, the others round."""
    errors = [0.01] * 20
    errors[3], errors[11] = 40.0, 7.0
    curve, _ = swept(errors)
    assert Plan.of((3, 11)) == curve.culprits == curve.passing
    assert {3, 11} == set(curve.without)
    assert 7.0 < curve.without[3]


@pytest.mark.parametrize("jump", [1.0, 5.0])
def test_an_answer_of_a_large_network_is_in_hand_before_its_layers_are_ranked(jump: float) -> None:
    """Blocks suffice for a plan that passes, also where errors jump as those of selections do."""
    errors = [0.01 * (1 + i % 7) for i in range(2 * LARGE)]
    errors[40], errors[300] = 40.0, 7.0

    def judge(kept: frozenset[int]) -> Outcome:
        error = quadrature(errors)(kept).error or 0.0
        return outcome(error if error < TOLERANCE / 4 else jump * error)

    curve = Curve(problem=oracles.problem(len(errors)), copies=False)
    simulation = Simulation(len(errors), judge, emulator=quadrature(errors))
    simulation.run(sweep(curve))
    first = next(n for n, trial in enumerate(simulation.trials) if in_hand(trial))
    asked = [trial.proposal.plan for trial in simulation.trials]
    alone = next(n for n, plan in enumerate(asked) if len(plan) == len(errors) - 1)
    assert first < alone
    assert asked[first] not in curve.tried


def in_hand(trial: Trial) -> bool:
    """Tell whether a trial is of a plan that passes, and no forecast."""
    return trial.proposal.kind is Kind.JUDGE and trial.outcome.passed


def test_spread_rounding_has_no_culprit() -> None:
    """Twenty layers that hurt alike: none is named, and the law's prefix passes."""
    curve, _ = swept([0.5] * 20)
    assert Plan.of(()) == curve.culprits
    assert curve.passing is not None
    assert 16 <= len(curve.passing) < 20


@pytest.mark.parametrize("passes", [True, False])
def test_what_leaves_the_range_is_no_rounding(*, passes: bool) -> None:
    """Layers that hurt alike are searched where the plan of the preflight passes, else spread."""
    beyond_range = Plan.of(range(58 if passes else 20))
    problem = replace(oracles.problem(60), beyond_range=lambda: beyond_range)
    curve = Curve(problem=problem, copies=False)
    Simulation(60, quadrature([0.5] * 60)).run(sweep(curve))
    assert curve.passing is not None
    assert (not passes) is curve.spread


def test_a_set_that_does_not_bring_the_error_down_is_none() -> None:
    """One layer alone hurts as much as the rest, and keeping it changes nothing."""
    errors = [5.0, *[0.3] * 15]
    curve = Curve(problem=oracles.problem(16), copies=False)
    stuck = lambda kept: outcome(0.0 if len(kept) == 16 else 9.0)  # noqa: E731 - a rule in a line
    Simulation(16, stuck, emulator=quadrature(errors)).run(sweep(curve))
    assert Plan.of(()) == curve.culprits
    assert curve.passing is None


def test_a_layer_whose_keeping_takes_little_off_is_none() -> None:
    """Alone it hurts as much as everything together: errors that cancel prove nothing."""
    errors = [5.0, *[0.3] * 15]
    curve = Curve(problem=oracles.problem(16), copies=False)
    little = lambda kept: outcome(0.0 if len(kept) == 16 else 5.0 if not kept else 4.6)  # noqa: E731
    Simulation(16, little, emulator=quadrature(errors)).run(sweep(curve))
    assert Plan.of(()) == curve.culprits


def test_a_check_without_figures_has_no_curve() -> None:
    """Nothing is asked, nothing is known."""
    curve = Curve(problem=replace(oracles.problem(8), tolerance=None), copies=False)
    simulation = Simulation(8, oracles.monotone([1]))
    simulation.run(sweep(curve))
    assert (None, None, []) == (curve.culprits, curve.law, simulation.trials)


def test_a_plan_without_a_verdict_is_passed_over() -> None:
    """A point that cannot be built has no figure; the sweep goes on to one that passes."""
    errors = [0.5] * 20

    def judge(kept: frozenset[int]) -> Outcome:
        if 0 < len(kept) < 15:
            return Outcome(status=TrialStatus.BUILD_FAILED)
        return quadrature(errors)(kept)

    curve = Curve(problem=oracles.problem(20), copies=False)
    Simulation(20, judge, emulator=quadrature(errors)).run(sweep(curve))
    assert curve.passing is not None
    assert len(curve.passing) >= 15


def test_a_few_layers_far_below_the_answer_are_the_margin() -> None:
    """The answer passes without the two layers that carry nearly all of its error."""
    errors = [9.0, 8.0, 0.6, 0.6, *[0.002] * 26]
    curve, simulation = swept(errors)
    answer = Plan.of((0, 1))
    simulation.run(complete(curve, answer, simulation.oracle(answer.kept)))
    assert Plan.of((0, 1, 2, 3)) == curve.margin
    points = curve.points(answer, simulation.oracle(answer.kept))
    assert {"all_low": 0, "answer": 2, "margin": 4} == {
        name: len(plan) for plan, _, name in points if name
    }


def test_spread_rounding_has_no_margin() -> None:
    """No few layers bring an error far down that all share alike."""
    curve, simulation = swept([0.2] * 60)
    assert curve.passing is not None
    simulation.run(complete(curve, curve.passing, curve.tried[curve.passing]))
    assert curve.margin is None


@given(
    st.lists(st.floats(1e-4, 50.0), min_size=1, max_size=70),
    st.floats(0.3, 1.2),
)
def test_the_sweep_is_bounded(errors: list[float], factor: float) -> None:
    """Whatever the errors, few plans are evaluated, and where one passes it is a prefix."""
    curve, simulation = swept(errors, factor)
    most = CURVE_EVALUATIONS + 2 * math.ceil(math.log2(max(2, len(errors))))
    assert len(curve.tried) <= most
    assert simulation.count() <= most
    law = curve.law
    assert law is not None
    for plan in curve.tried:
        assert plan == Plan.of(law.order[: len(plan)])


@given(st.floats(0.3, 9.0), st.integers(1, 30))
def test_layers_that_hurt_alike_are_no_culprits(error: float, count: int) -> None:
    """However much each hurts, none stands out."""
    law = Law(list(range(count)), [error] * count)
    assert 0 == law.culprits(1.0, 2.0**-11)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40), st.integers(0, 40))
def test_fewer_culprits_are_asked_for_one_by_one(errors: list[float], most: int) -> None:
    """The next smaller set keeps to the rule: its last layer hurts as much as all the rest."""
    ordered = sorted(errors, reverse=True)
    law = Law(list(range(len(ordered))), ordered)
    whole = law.culprits(1e-2, 2.0**-11)
    fewer = law.culprits(1e-2, 2.0**-11, most=min(most, len(ordered)))
    assert fewer <= min(whole, most)
    if fewer:
        assert ordered[fewer - 1] >= math.hypot(*ordered[fewer:])


def joint(groups: list[set[int]], size: int, broken: float) -> Oracle:
    """Break the output unless one layer of each group is high; all others round a little."""

    def judge(kept: frozenset[int]) -> Outcome:
        if not all(group & kept for group in groups):
            return outcome(broken)
        return outcome(0.01 * math.sqrt(size - len(kept)))

    return judge


@st.composite
def joint_networks(draw: st.DrawFn) -> tuple[int, list[set[int]], frozenset[int], float]:
    """Draw a size, groups of which each needs a layer, the plan beyond the range, an error."""
    size = draw(st.integers(12, 40))
    places = draw(st.permutations(range(size)))
    needed = draw(st.integers(2, 6))
    # Some are needed by themselves, and some have another layer that serves as well.
    groups = [
        {places[i], places[needed + i]} if draw(st.booleans()) else {places[i]}
        for i in range(needed)
    ]
    spare = draw(st.integers(0, 4))
    beyond = frozenset(set().union(*groups) | set(places[size - spare :] if spare else ()))
    # Every layer high is no plan to begin with.
    assume(len(beyond) < size)
    return size, groups, beyond, draw(st.sampled_from([math.inf, 50.0]))


@given(joint_networks())
def test_layers_that_break_it_together_are_the_culprits(
    network: tuple[int, list[set[int]], frozenset[int], float],
) -> None:
    """Alone each rounds as all others do; the plan beyond the range has passed, and is reduced."""
    size, groups, beyond, broken = network
    quiet = quadrature([0.01] * size)
    everything = frozenset(range(size))

    def alone(kept: frozenset[int]) -> Outcome:
        # With a single layer low nothing is broken: others still serve.
        return quiet(kept) if len(everything - kept) <= 1 else joint(groups, size, broken)(kept)

    problem = replace(oracles.problem(size), beyond_range=lambda: Plan.of(beyond))
    curve = Curve(problem=problem, copies=False)
    rule = joint(groups, size, broken)
    answer = Plan.of(min(group) for group in groups)
    simulation = Simulation(size, rule, emulator=alone)
    simulation.run(sweep(curve))
    assert curve.culprits is not None
    assert len(groups) == len(curve.culprits)
    assert all(len(group & curve.culprits.kept) == 1 for group in groups)
    assert set(curve.culprits.kept) == set(curve.without)
    simulation.run(complete(curve, answer, rule(answer.kept)))
    drawn = [plan.kept for plan, *_ in curve.points(answer, rule(answer.kept))]
    assert all(few < more for few, more in pairwise(drawn))
    assert answer.kept in drawn


@given(
    errors=st.lists(st.floats(0.01, 3.0), min_size=8, max_size=24),
    answer=st.sets(st.integers(0, 7), min_size=1),
)
def test_each_point_keeps_all_of_the_one_before(errors: list[float], answer: set[int]) -> None:
    """Whatever the answer is: its curve has no two points of one size."""
    curve, simulation = swept(errors)
    plan, told = Plan.of(answer), quadrature(errors)(frozenset(answer))
    simulation.run(complete(curve, plan, told))
    drawn = [plan.kept for plan, *_ in curve.points(plan, told)]
    assert all(few < more for few, more in pairwise(drawn))
    assert plan.kept in drawn
