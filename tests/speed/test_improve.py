"""Improving a plan for speed: what is accepted, what it costs, and how runs with limits end."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from paced import Case, Clock, case, chain, run
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Pace, SpeedLimits
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.driver import Driver
from precision_bisect.search.speed.cheapest import cheapest
from precision_bisect.search.speed.meet_limits import MOST_BUILDS
from precision_bisect.trial import Kind, Outcome, Phase, Trial
from simulated import by

ERRORS = [0.01, 0.01, 0.9, 0.01, 0.01, 0.3, 0.01, 0.3, 0.3, 0.01, 0.3, 0.01]
COSTS = [0.05, 0.05, 2.0, *[0.05] * 9]
"""Keeping layer 2 saves most error and costs most; 5, 7, 8 and 10 together save enough, too."""


def costly(limits: SpeedLimits, **clock: float) -> Case:
    """Return the case of `ERRORS` and `COSTS`."""
    graph = chain(COSTS)
    return case(by(oracles.additive(ERRORS)), graph, limits, Clock(graph, **clock))


def improvements(driver: Driver) -> list[Trial]:
    """Return the builds of the improvement."""
    return [
        trial
        for trial in driver.trials
        if trial.proposal.phase is Phase.SPEED and trial.proposal.kind is not Kind.PREDICT
    ]


def test_the_fewest_layers_are_not_the_fastest(tmp_path: Path) -> None:
    """More layers take the place of those found first, which miss the limit."""
    asked = costly(SpeedLimits(min_speedup=2.0), noise=0.005)
    ending, driver = run(asked, tmp_path)
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    assert ending.found is not None
    assert len(ending.found) < len(ending.plan)
    assert asked.clock.speedup(ending.found) < 2.0 < asked.clock.speedup(ending.plan)
    assert oracles.additive(ERRORS)(ending.plan.kept).passed
    assert "for speed" in ending.message
    assert len(improvements(driver)) <= 3


def test_what_stands_in_for_one_layer_may_not_for_another(tmp_path: Path) -> None:
    """Two outputs, the worse one judged: each costly layer has substitutes of its own."""
    first = [2.0, *[0.0] * 8, 0.2]
    second = [0.9, *[0.3] * 4, *[0.0] * 5]

    def worse(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(
            max(
                sum(error for i, error in enumerate(errors, start) if i not in kept)
                for start, errors in ((0, first), (10, second))
            )
        )

    graph = chain([3.0, *[0.05] * 9, 2.0, *[0.05] * 9], cast_ms=0.01)
    asked = case(by(worse), graph, SpeedLimits(min_speedup=1.5))
    ending, driver = run(asked, tmp_path)
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    assert {0} == {0, 10} & ending.plan.kept
    assert sum(trial.proposal.kind is Kind.PREDICT for trial in driver.trials) <= 150


def test_casts_between_kept_layers_are_filled_in(tmp_path: Path) -> None:
    """Where Casts cost most, the layers between two kept ones are kept, too."""
    graph = chain([0.01] * 12, cast_ms=0.2)
    asked = case(by(oracles.monotone([3, 5, 7])), graph, SpeedLimits(min_speedup=0.1))
    ending, _ = run(asked, tmp_path)
    assert ending.found == Plan.of((3, 5, 7))
    assert ending.plan is not None
    assert {3, 4, 5, 6, 7} <= ending.plan.kept
    assert asked.clock.true_ms(ending.plan) < asked.clock.true_ms(ending.found)


def test_a_graph_that_is_wrong_costs_builds_not_speed(tmp_path: Path) -> None:
    """Where the engine contradicts the estimates the first plan stays, certified."""
    asked = case(
        by(oracles.monotone([3, 5, 7])),
        chain([0.01] * 12, cast_ms=0.2),
        SpeedLimits(min_speedup=0.1),
        Clock(chain([1.0] * 12, cast_ms=0.0)),
    )
    ending, driver = run(asked, tmp_path)
    assert (Plan.of((3, 5, 7)), None) == (ending.plan, ending.found)
    assert 1 <= len(improvements(driver)) <= MOST_BUILDS


def test_an_emulator_that_is_wrong_costs_builds_never_the_verdict(tmp_path: Path) -> None:
    """Swaps that the emulator promises and the engine refuses are not taken."""
    graph = chain(COSTS)
    asked = case(
        by(oracles.monotone([2, 5])),
        graph,
        SpeedLimits(min_speedup=0.1),
        emulate=by(oracles.additive(ERRORS)),
    )
    ending, driver = run(asked, tmp_path)
    assert ending.plan is not None
    assert {2, 5} <= ending.plan.kept
    assert any(trial.outcome.failed for trial in improvements(driver))


def test_both_limits_impossible(tmp_path: Path) -> None:
    """The run says how near both come: from the accurate side and from the fast side."""
    asked = costly(SpeedLimits(min_speedup=2.6))
    ending, driver = run(asked, tmp_path)
    assert (Status.INFEASIBLE, None) == (ending.status, ending.plan)
    fastest = max(asked.clock.speedup(t.proposal.plan) for t in driver.trials if t.outcome.passed)
    assert f"{fastest:.3g} times as fast as all high" in ending.message
    fast = [
        oracles.additive(ERRORS)(t.proposal.plan.kept).error or 0.0
        for t in driver.trials
        if t.outcome.evidence.latency and asked.clock.speedup(t.proposal.plan) >= 2.6
    ]
    assert f"has error {min(fast):.3g}, 1 is allowed" in ending.message


def test_a_plan_that_passes_by_luck_below_what_is_too_slow_is_the_answer(tmp_path: Path) -> None:
    """What is measured for the nearest miss may pass: each plan rounds anew."""
    limits = SpeedLimits(min_speedup=2.4)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    ending, driver = run(costly(limits), first)
    assert ending.status is Status.INFEASIBLE
    failed = next(
        trial
        for trial in improvements(driver)
        if trial.proposal.reason.startswith("fast enough with")
        and trial.outcome.failed
        and costly(limits).clock.speedup(trial.proposal.plan) >= 2.4
    )
    lucky = failed.proposal.plan

    def oracle(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(0.5) if kept == lucky.kept else oracles.additive(ERRORS)(kept)

    asked = case(by(oracle), chain(COSTS), limits, emulate=by(oracles.additive(ERRORS)))
    ending, driver = run(asked, second)
    assert (Status.FOUND, lucky) == (ending.status, ending.plan)
    below = [t for t in improvements(driver) if t.proposal.reason.startswith("fast enough with")]
    assert below[-1].proposal.plan == lucky


FAST, ONCE = Plan.of(range(5, 12)), Plan.of((5, 7, 8, 10))
"""Plans of `ERRORS` that a run builds, and that pass."""


def timed_by(times: dict[Plan, Callable[[int], float]], needed: float = 3.0) -> Case:
    """Return the case of `ERRORS`, with plans that take what is said for each build of them."""
    asked = costly(SpeedLimits(min_speedup=needed))
    usual = asked.clock

    def clock(plan: Plan) -> float:
        return times[plan](asked.backend.built.count(plan)) if plan in times else usual(plan)

    asked.backend.clock = clock
    return asked


def test_a_plan_of_the_search_that_holds_both_limits_is_the_answer(tmp_path: Path) -> None:
    """Also where a smaller one did so once, and is slow when built afresh."""
    asked = timed_by({FAST: lambda _: 0.3, ONCE: lambda build: 0.3 if build <= 1 else 4.0})
    ending, driver = run(asked, tmp_path)
    assert (Status.FOUND, FAST) == (ending.status, ending.plan)
    assert asked.backend.built.count(ONCE) == 2
    assert sum(t.proposal.kind is Kind.REBUILD for t in driver.trials) == 2
    both = timed_by(dict.fromkeys((FAST, ONCE), lambda _: 0.3))
    (tmp_path / "both").mkdir()
    assert run(both, tmp_path / "both")[0].plan == min(FAST, ONCE)


def test_plans_that_hold_both_limits_only_once_are_no_answer(tmp_path: Path) -> None:
    """They are built afresh, and the run ends with how fast the answer was then."""
    asked = timed_by({plan: lambda build: 0.3 if build <= 1 else 4.0 for plan in (FAST, ONCE)})
    ending, _ = run(asked, tmp_path)
    assert (Status.INFEASIBLE, None) == (ending.status, ending.plan)
    assert "built afresh it takes 4 ms" in ending.message


def test_all_high_is_no_answer(tmp_path: Path) -> None:
    """It is as fast as itself: that is not what a limit of 1 asks for."""
    asked = case(
        by(oracles.monotone([3, 5, 7])),
        chain([0.01] * 12, cast_ms=0.0),
        SpeedLimits(min_speedup=1.0),
        Clock(chain([0.01] * 12, cast_ms=0.5)),
    )
    ending, _ = run(asked, tmp_path)
    assert ending.plan != Plan.all_high(12)


def test_a_limit_beyond_all_low(tmp_path: Path) -> None:
    """Where even all low is too slow, nothing more is built for the fast side."""
    asked = costly(SpeedLimits(max_latency_ms=0.5))
    ending, _ = run(asked, tmp_path)
    assert ending.status is Status.INFEASIBLE
    assert "even all low is only" in ending.message
    assert "at most 0.5 ms" in ending.message


def test_both_limits_must_hold(tmp_path: Path) -> None:
    """The stricter of two limits decides."""
    loose, strict = SpeedLimits(min_speedup=1.1), SpeedLimits(min_speedup=1.1, max_latency_ms=0.5)
    for limits, status in ((loose, Status.FOUND), (strict, Status.INFEASIBLE)):
        folder = tmp_path / status
        folder.mkdir()
        assert status is run(costly(limits), folder)[0].status


def test_nothing_to_keep_must_be_fast_too(tmp_path: Path) -> None:
    """All low passes the tolerance, but is measured against the speed limits as any plan."""
    graph = chain([0.5] * 6)
    everything_low = by(oracles.monotone([]))
    for factor, status in ((0.9, Status.NOTHING_TO_KEEP), (1.1, Status.INFEASIBLE)):
        needed = factor * Clock(graph).speedup(Plan.of(()))
        folder = tmp_path / status
        folder.mkdir()
        asked = case(everything_low, graph, SpeedLimits(min_speedup=needed))
        assert status is run(asked, folder)[0].status


def test_an_answer_that_is_slower_when_built_afresh_is_none(tmp_path: Path) -> None:
    """The kept engine decides: the re-check's build must hold the speed limits, too."""
    asked = case(by(oracles.monotone([3])), chain([0.2] * 6), SpeedLimits(min_speedup=1.2))
    answer = Plan.of((3,))
    assert asked.clock.speedup(answer) > 1.2
    steady = asked.backend.clock
    asked.backend.clock = lambda plan: (
        steady(plan) * (2 if plan == answer and asked.backend.built.count(plan) > 1 else 1)
    )
    ending, _ = run(asked, tmp_path)
    assert (Status.INFEASIBLE, None) == (ending.status, ending.plan)
    assert "built afresh" in ending.message


def test_the_budget_holds_in_the_midst(tmp_path: Path) -> None:
    """A budget that ends during the improvement stops it; going on comes to the same answer."""
    (tmp_path / "whole").mkdir()
    whole, driver = run(costly(SpeedLimits(min_speedup=2.0)), tmp_path / "whole")
    total = sum(trial.proposal.kind is not Kind.PREDICT for trial in driver.trials)
    for short in (1, 2, 3):
        folder = tmp_path / str(short)
        folder.mkdir()
        asked = costly(SpeedLimits(min_speedup=2.0))
        with pytest.raises(BudgetSpent):
            run(asked, folder, budget=Budget(max_trials=total - short))
        assert total - short == len(asked.backend.built)
        assert 0 == asked.backend.open
        assert whole == run(costly(SpeedLimits(min_speedup=2.0)), folder)[0]


def test_a_resumed_run_repeats_nothing_but_the_baseline(tmp_path: Path) -> None:
    """The second run answers from the ledger and does not even build all-high."""
    first, _ = run(costly(SpeedLimits(min_speedup=2.0), noise=0.01), tmp_path)
    again = costly(SpeedLimits(min_speedup=2.0), noise=0.01)
    assert first == run(again, tmp_path)[0]
    assert [] == again.backend.built


def test_with_workers_only_the_answer_is_timed(tmp_path: Path) -> None:
    """Timed trials run alone, so the search is not timed; the answer is built afresh for it."""
    graph = chain(COSTS)
    asked = case(
        by(oracles.additive(ERRORS)), graph, SpeedLimits(min_speedup=2.0), Clock(graph), workers=4
    )
    ending, driver = run(asked, tmp_path)
    assert ending.plan is not None
    assert asked.clock.speedup(ending.plan) >= 2.0
    searched = [t for t in driver.trials if t.proposal.phase is Phase.SEARCH]
    assert searched
    assert all(t.outcome.evidence.latency is None for t in searched)


def test_other_limits_reuse_what_was_measured(tmp_path: Path) -> None:
    """Limits are no part of what trials depend on: a stricter one goes on from the same ledger."""
    run(costly(SpeedLimits(min_speedup=2.0)), tmp_path)
    again = costly(SpeedLimits(min_speedup=2.6))
    assert run(again, tmp_path)[0].status is Status.INFEASIBLE
    assert len(again.backend.built) <= 5


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], CostGraph, float, float]:
    """Draw errors, costs, a needed speed-up and how noisy the clock is."""
    size = draw(st.integers(3, 8))
    errors = draw(
        st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size).filter(
            lambda found: sum(found) > oracles.TOLERANCE
        )
    )
    costs = draw(st.lists(st.sampled_from((0.01, 0.2, 1.0)), min_size=size, max_size=size))
    graph = chain(costs, draw(st.sampled_from((0.0, 0.05, 0.3))))
    noise = draw(st.sampled_from((0.0, 0.01)))
    return errors, graph, draw(st.floats(0.5, 3.0)), noise


def outcome_of(drawn: tuple[list[float], CostGraph, float, float]) -> tuple[Ending, list[Trial]]:
    """Run a drawn case."""
    errors, graph, needed, noise = drawn
    asked = case(
        by(oracles.additive(errors)),
        graph,
        SpeedLimits(min_speedup=needed),
        Clock(graph, noise=noise),
    )
    with TemporaryDirectory() as folder:
        ending, driver = run(asked, Path(folder))
    return ending, list(driver.trials)


@examples(12)
@given(cases())
def test_an_answer_passed_and_is_fast_enough_and_no_slower(
    drawn: tuple[list[float], CostGraph, float, float],
) -> None:
    """Whatever the costs: the answer was judged a pass, meets the limit, and beats what it was."""
    ending, trials = outcome_of(drawn)
    judged = {t.proposal.plan: t.outcome for t in trials if t.proposal.kind is Kind.JUDGE}
    everything = judged[Plan.all_high(len(drawn[0]))].evidence.latency
    assert everything is not None
    if ending.plan is None:
        assert ending.status is Status.INFEASIBLE
        paces = [
            Pace.of(outcome.evidence.latency, everything.median_ms)
            for plan, outcome in judged.items()
            if outcome.passed and plan != Plan.all_high(len(drawn[0]))
        ]
        fast = any(pace is not None and pace.meets(drawn[2]) for pace in paces)
        assert not fast or any(t.proposal.kind is Kind.REBUILD for t in trials)
        return
    assert judged[ending.plan].passed
    pace = Pace.of(judged[ending.plan].evidence.latency, everything.median_ms)
    assert pace is not None
    assert pace.meets(drawn[2])
    if ending.found is not None:
        before = Pace.of(judged[ending.found].evidence.latency, everything.median_ms)
        assert before is not None
        assert pace.speedup > before.speedup


@examples(8)
@given(cases())
def test_the_same_outcomes_give_the_same_trials(
    drawn: tuple[list[float], CostGraph, float, float],
) -> None:
    """Two runs that measure the same try the same."""
    first, second = outcome_of(drawn), outcome_of(drawn)
    assert first[0] == second[0]
    assert [t.proposal for t in first[1]] == [t.proposal for t in second[1]]


def test_what_steps_do_not_reach_is_found(tmp_path: Path) -> None:
    """Asked for the speed of the fastest plan by cost, which holds, less 1.5%, a run finds it."""
    errors = [0.4, 0.4, 0.05, 0.2, 0.6, 0.4, 0.4, 0.2, 0.4, 0.2, 0.6, 0.1]
    graph = chain([0.1, 0.5, 0.1, 0.05, 0.5, 0.1, 0.5, 0.05, 0.05, 0.5, 1.0, 0.05], cast_ms=0.15)

    def judged(kept: frozenset[int]) -> Outcome:
        return oracles.outcome(math.hypot(*(e for i, e in enumerate(errors) if i not in kept)))

    fastest = cheapest(graph, errors, oracles.TOLERANCE, [Plan.all_high(graph.size)])[0]
    assert judged(fastest.kept).passed
    needed = 0.985 * Clock(graph).speedup(fastest)
    asked = case(by(judged), graph, SpeedLimits(min_speedup=needed))
    ending, _ = run(asked, tmp_path)
    assert ending.status is Status.FOUND and ending.plan is not None
    assert asked.clock.speedup(ending.plan) >= needed
