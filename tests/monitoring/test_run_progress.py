"""How far a run is, by its events: the best so far, what is left, what counts neither way."""

from dataclasses import replace
from typing import Any

import pytest

from beginning import STARTED
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import TrialFinished
from precision_bisect.runs.monitoring.run_progress import MOST_LAST, Progress
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet, TrialStatus, Verdict


def outcome(verdict: Verdict | None, error: float | None) -> Outcome:
    """Return what a trial showed."""
    done = TrialStatus.FINISHED if verdict else TrialStatus.TIMED_OUT
    return Outcome(status=done, verdict=verdict, error=error)


def test_the_best_is_the_smallest_that_nothing_speaks_against() -> None:
    """Predictions and other samples do not count; a refuted answer leaves what passed on all."""
    progress = Progress()

    def take(kept: int, passed: bool, **more: Any) -> int | None:
        verdict = Verdict.PASS if passed else Verdict.FAIL
        proposal = Proposal(plan=Plan.of(range(kept)), **more)
        found = TrialFinished(proposal=proposal, outcome=outcome(verdict, 0.0), recalled=False)
        progress.take(found)
        return None if progress.best is None else len(progress.best.proposal.plan)

    progress.take(STARTED)
    assert None is take(2, False)
    assert None is take(1, True, kind=Kind.PREDICT)
    assert None is take(1, True, samples=SampleSet.RANKING)
    assert 9 == take(9, True)
    assert 5 == take(5, True)
    assert 5 == take(7, True)
    assert 5 == take(5, False, phase=Phase.RECHECK, samples=SampleSet.HELD_OUT)
    chosen = SampleSet.chosen([3, 1])
    assert 9 == take(5, False, phase=Phase.RECHECK, samples=chosen.others)
    assert 8 == take(8, True, samples=chosen)
    progress.take(replace(STARTED, rung="the next"))
    assert progress.best is None


def test_a_ranking_is_as_far_as_it_says() -> None:
    """Time that is left is told by it: a bar that runs ahead tells too little of it."""
    progress, count = Progress(), 200
    progress.take(STARTED)
    ends: list[float] = []
    for number in range(count):
        proposal = Proposal(
            plan=Plan.of((number,)), phase=Phase.RANKING, about_left=count - number
        )
        found = outcome(Verdict.PASS, 0.0)
        progress.take(TrialFinished(proposal=proposal, outcome=found, recalled=False))
        ends.append(progress.done)
    assert ends[-1] == pytest.approx(2 * ends[count // 2 - 1], rel=0.2)


def test_trials_without_a_verdict_are_counted_once() -> None:
    """Told again from the ledger they are the same trials; only the last trials are kept."""
    progress = Progress()
    progress.take(STARTED)
    for recalled in (False, True):
        for kept in range(9):
            proposal = Proposal(plan=Plan.of(range(kept)))
            progress.take(
                TrialFinished(proposal=proposal, outcome=outcome(None, None), recalled=recalled)
            )
    assert {"timed_out": 9} == progress.unresolved
    assert (9, MOST_LAST) == (progress.trials, len(progress.last))
