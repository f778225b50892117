"""Where monotonicity was seen broken: against a search of all pairs, and at the edges."""

import math
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import TOLERANCE, outcome
from precision_bisect.plan import Plan
from precision_bisect.runs.results.curve_of_result import KeptError
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.certificate.monotone import (
    MOST_LISTED,
    MOST_NAMED,
    breaks,
    remarks,
    rows,
)
from precision_bisect.search.limits_and_noise import MARGIN
from precision_bisect.trial import (
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
)

NOISE = 0.1


def seen(trials: Sequence[Trial], tolerance: float | None = TOLERANCE) -> JudgedTrials:
    """Return what was seen of these trials."""
    return JudgedTrials(tolerance=tolerance, size=2000).having(trials)


def trial(kept: Sequence[int], error: float, kind: Kind = Kind.JUDGE) -> Trial:
    """Return a judged trial."""
    return Trial(proposal=Proposal(plan=Plan.of(kept), kind=kind), outcome=outcome(error))


def test_a_failure_above_a_pass_is_a_break() -> None:
    """The failing plan, the largest passing one within it, and what it keeps in addition."""
    trials = [trial([1], 0.5), trial([1, 2], 0.4), trial([1, 2, 5], 3.0), trial([7, 8], 9.0)]
    (found,) = breaks(seen(trials), 0.0)
    assert (Plan.of([1]), 0.5) == found.passed
    assert (Plan.of([1, 2, 5]), 3.0) == found.failed
    assert Plan.of([2, 5]) == found.added


def test_the_largest_passing_plan_within_is_named() -> None:
    """So that as few layers as possible are named as kept in addition."""
    trials = [trial([1], 0.5), trial([2, 3], 0.5), trial([1, 2, 3, 5], 3.0)]
    (found,) = breaks(seen(trials), 0.0)
    assert (Plan.of([2, 3]), Plan.of([1, 5])) == (found.passed.plan, found.added)


@pytest.mark.parametrize(
    ("passed", "failed", "noise"),
    [
        (0.95, 1.05, True),
        (0.81, 1.19, True),
        (0.7, 1.05, True),
        (0.7, 1.2, False),
        (0.5, 1.05, False),
        (0.95, 1.5, False),
        (0.95, float("inf"), False),
    ],
)
def test_what_noise_explains_is_no_break(passed: float, failed: float, noise: bool) -> None:
    """The errors must differ by more than four times the noise floor."""
    found = breaks(seen([trial([1], passed), trial([1, 2], failed)]), NOISE)
    assert noise == (not found)


@pytest.mark.parametrize(("builds", "noise"), [(2, False), (50, False), (1000, True)])
def test_of_many_builds_some_are_farther_off(builds: int, noise: bool) -> None:
    """What is no luck among few builds is that of one among a thousand."""
    rest = [trial([number], 2.0) for number in range(10, 8 + builds)]
    found = breaks(seen([trial([1], 0.71), trial([1, 2], 1.29), *rest]), NOISE)
    assert noise == (not found)


def test_a_clear_pass_is_named_before_a_doubtful_one() -> None:
    """A plan within the failing one that passed clearly shows more than one near the limit."""
    trials = [trial([1], 0.99), trial([1, 2], 0.2), trial([1, 2, 3], 1.01)]
    (found,) = breaks(seen(trials), NOISE)
    assert Plan.of([1, 2]) == found.passed.plan


def test_without_figures_nothing_is_noise() -> None:
    """A check that says yes or no leaves no doubt."""
    plain = [trial([1], 0.99), trial([1, 2], 1.01)]
    bare = [
        Trial(
            proposal=each.proposal,
            outcome=Outcome(status=each.outcome.status, verdict=each.outcome.verdict),
        )
        for each in plain
    ]
    assert 1 == len(breaks(seen(bare, None), NOISE))


def test_what_builds_disagree_on_speaks_neither_way() -> None:
    """A plan that passed and failed when it was built afresh is no evidence; a repeat is none."""
    trials = [
        trial([1], 0.5),
        trial([1], 2.0, Kind.REBUILD),
        trial([1, 2], 2.0),
        trial([3], 2.0, Kind.REPEAT),
    ]
    assert [] == list(breaks(seen(trials), 0.0))


def test_other_samples_and_other_evaluators_do_not_count() -> None:
    """Predictions, and verdicts on other samples, are not compared with those on these."""
    other = Proposal(plan=Plan.of([1]), samples=SampleSet("all"), phase=Phase.SEARCH)
    predicted = trial([1], 0.5, Kind.PREDICT)
    trials = [Trial(proposal=other, outcome=outcome(0.5)), predicted, trial([1, 2], 2.0)]
    assert [] == list(breaks(seen(trials), 0.0))


ERRORS = st.sampled_from([0.2, 0.7, 0.95, 1.05, 1.2, 3.0, math.inf])
TRIALS = st.dictionaries(st.frozensets(st.integers(0, 4)), ERRORS, max_size=14)


@given(errors=TRIALS)
def test_it_finds_what_a_search_of_all_pairs_finds(errors: dict[frozenset[int], float]) -> None:
    """One break for each failing plan above a passing one, unless noise explains every pair."""
    expected: set[Plan] = set()
    for failed, error in errors.items():
        below = [errors[each] for each in errors if each < failed and errors[each] <= TOLERANCE]
        if error > TOLERANCE and any(error - each > 2 * MARGIN * NOISE for each in below):
            expected.add(Plan.of(failed))
    trials = [trial(sorted(kept), error) for kept, error in errors.items()]
    found = breaks(seen(trials), NOISE)
    assert expected == {each.failed.plan for each in found}
    assert all(each.passed.plan.kept < each.failed.plan.kept for each in found)


def test_hundreds_of_trials_take_few_steps() -> None:
    """Of 600 trials half contain no other: each is compared with these, once."""
    trials = [trial([size, *range(1000, 1500)], 0.5) for size in range(300)]
    trials += [trial([*range(size), *range(1000, 1500)], 2.0) for size in range(2, 300)]
    judged, calls = seen(trials), Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    found = breaks(judged, 0.0)
    sys.setprofile(None)
    assert 298 == len(found)
    assert calls["call"] <= 2 * 600 * 300
    assert [each.failed for each in found] == [each.failed for each in breaks(judged, NOISE)]


def test_rows_and_remarks_are_few_and_name_the_layers() -> None:
    """The list is capped, its names too; one sentence says how often."""
    size = MOST_NAMED + 5
    trials = [trial([], 0.5)]
    trials += [trial(range(1, size - least), 2.0) for least in range(MOST_LISTED + 2)]
    found = breaks(seen(trials), NOISE)
    listed = rows(found, [f"layer{i}" for i in range(size)])
    assert MOST_LISTED == len(listed)
    assert KeptError(kept=0, error=0.5) == listed[0].passed
    assert MOST_NAMED >= max(len(row.layers) for row in listed)
    assert "layer1" == listed[0].layers[0]
    assert 1 == len(remarks(found))


def test_nothing_broken_says_nothing() -> None:
    """A monotone run, with unresolved trials in it, has neither rows nor remarks."""
    lost = Trial(
        proposal=Proposal(plan=Plan.of([1, 2])), outcome=Outcome(status=TrialStatus.TIMED_OUT)
    )
    found = breaks(seen([trial([1], 0.5), lost, trial([], 2.0)]), 0.0)
    assert ([], []) == (rows(found, []), remarks(found))
