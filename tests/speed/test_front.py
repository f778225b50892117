"""The front holds exactly the plans that no other one beats."""

from hypothesis import given
from hypothesis import strategies as st

from paced import chain
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import SpeedLimits
from precision_bisect.runs.results.speed_report import FrontPoint
from precision_bisect.search.speed.front import Timings, front, judged_outcomes
from precision_bisect.trial import (
    Evidence,
    Kind,
    Latency,
    Outcome,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
    Verdict,
)

HIGH_MS = 8.0


def outcome(error: float, speedup: float, spread: float = 0.1) -> Outcome:
    """Return the outcome of a plan with this error and pace; errors above 1 fail."""
    latency = Latency(
        median_ms=HIGH_MS / speedup,
        spread_ms=0.0,
        runs=5,
        baseline_ms=HIGH_MS,
        speedup=speedup,
        speedup_spread=spread,
    )
    return Outcome(
        status=TrialStatus.FINISHED,
        verdict=Verdict.PASS if error <= 1 else Verdict.FAIL,
        error=error,
        evidence=Evidence(latency=latency),
    )


@given(
    st.dictionaries(
        st.frozensets(st.integers(0, 6)).map(Plan.of),
        st.tuples(st.sampled_from((0.0, 0.5, 1.0, 2.0)), st.sampled_from((1.0, 2.0, 4.0))),
        min_size=1,
    )
)
def test_nothing_measured_beats_the_front(figures: dict[Plan, tuple[float, float]]) -> None:
    """Every plan is matched by one of the front; those of the front beat each other in nothing."""
    outcomes = {plan: outcome(*figure) for plan, figure in figures.items()}
    found = front(outcomes, HIGH_MS)
    axes = [point.axes for point in found]
    assert sorted(axes) == axes
    assert sorted((error for _, error in axes), reverse=True) == [error for _, error in axes]
    assert len(set(axes)) == len(axes)
    for error, speedup in figures.values():
        assert any(ms <= HIGH_MS / speedup and worst <= error for ms, worst in axes)


def test_what_tells_nothing_is_left_out() -> None:
    """Outputs that are not finite, plans without a verdict, and plans that were not timed."""
    failed = Outcome(status=TrialStatus.BUILD_FAILED)
    untimed = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.0)
    outcomes = {
        Plan.of((0,)): outcome(float("inf"), 9.0),
        Plan.of((1,)): failed,
        Plan.of((2,)): untimed,
        Plan.of((3,)): outcome(0.5, 2.0),
    }
    (only,) = front(outcomes, HIGH_MS, names="abcd")
    assert (["d"], 4.0, 2.0) == (only.kept, only.latency_ms, only.speedup)


def test_a_fresh_build_counts_for_its_plan() -> None:
    """The engine that is kept is the one whose figures are shown, on the samples that judge."""
    plan = Plan.of((1,))

    def trial(kind: Kind, samples: SampleSet, error: float) -> Trial:
        proposal = Proposal(plan=plan, kind=kind, samples=samples)
        return Trial(proposal=proposal, outcome=outcome(error, 2.0))

    trials = [
        trial(Kind.REBUILD, SampleSet.JUDGED, 0.2),
        trial(Kind.JUDGE, SampleSet.JUDGED, 0.1),
        trial(Kind.PREDICT, SampleSet.JUDGED, 0.9),
        trial(Kind.JUDGE, SampleSet("all"), 0.8),
    ]
    assert [0.2] == [found.error for found in judged_outcomes(trials, SampleSet.JUDGED).values()]


def test_without_an_engine_costs_stand_in() -> None:
    """Plans are ordered by what the graph says that they cost."""
    verdict = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.5)
    bad = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL, error=2.0)
    graph = chain([1.0] * 4, cast_ms=0.0)
    found = front({Plan.of((0, 1)): verdict, Plan.of((2,)): bad}, None, graph)
    expected = [
        FrontPoint(kept_count=1, passed=False, error=2.0, cost=1.0),
        FrontPoint(kept_count=2, passed=True, error=0.5, cost=2.0),
    ]
    assert expected == found


def test_best_so_far_meets_the_limits_if_any_plan_does() -> None:
    """The smallest within the limits; where none is, the fastest that passed."""
    figures = {
        Plan.all_high(4): (0.0, 1.0),
        Plan.of((0,)): (0.9, 1.5),
        Plan.of((1, 2)): (0.9, 2.5),
        Plan.of((1, 2, 3)): (0.9, 2.7),
        Plan.of(()): (9.0, 4.0),
    }
    trials = [
        Trial(proposal=Proposal(plan=plan), outcome=outcome(*figure))
        for plan, figure in figures.items()
    ]
    timings = Timings(trials=trials, samples=SampleSet.JUDGED, candidates=4)
    assert HIGH_MS == timings.high_ms
    assert Plan.of((1, 2)) == timings.best_so_far(SpeedLimits(min_speedup=2.0))
    assert Plan.of((1, 2, 3)) == timings.best_so_far(SpeedLimits(min_speedup=3.0))


def test_the_report_says_whether_the_spread_leaves_it_open() -> None:
    """Met by the median, or not, and close or clear."""
    everything = Proposal(plan=Plan.all_high(4))
    trials = [Trial(proposal=everything, outcome=outcome(0.0, 1.0))]
    timings = Timings(trials=trials, samples=SampleSet.JUDGED, candidates=4)
    latency = outcome(0.0, 2.0, 0.1).evidence.latency
    for needed, expected in (
        (1.5, (True, False)),
        (1.95, (True, True)),
        (2.05, (False, True)),
        (3.0, (False, False)),
    ):
        report = timings.report(SpeedLimits(min_speedup=needed), latency, None)
        assert report is not None
        assert expected == (report.met, report.within_spread)
    assert None is timings.report(SpeedLimits(), latency, None)
