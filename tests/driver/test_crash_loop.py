"""Trials that lose their process in a row end a run, and so does a search without an end."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from precision_bisect.errors import ExecutorError
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Sample, Search
from precision_bisect.search.budget import BudgetSpent
from precision_bisect.search.driver import MOST_LOST, CrashLoop
from precision_bisect.trial import Outcome, Proposal, TrialStatus
from simulated import Simulated, driven, driver_of

CRASH, HANG, OUT = TrialStatus.CRASHED, TrialStatus.TIMED_OUT, TrialStatus.BUILD_FAILED


def considered(folder: Path, ends: Sequence[TrialStatus | None]) -> int:
    """Return how many trials were run that end so, None for one that passes."""

    def rule(plan: Plan, feed: Sample) -> float:
        del feed
        status = ends[len(plan)]
        if status is not None:
            raise BackendFailure(Outcome(status=status, message="as asked"))
        return 0.1

    def asked() -> Search[None]:
        for number in range(len(ends)):
            yield (Proposal(plan=Plan.of(range(number))),)

    with driven(folder, Simulated(rule)) as driver:
        try:
            driver.run(asked())
        finally:
            done = len(driver.trials)
    return done


@pytest.mark.parametrize(
    "between", [[None], [OUT], [HANG], [None, OUT]], ids=["a pass", "a build", "a hang", "two"]
)
def test_a_streak_ends_with_another_trial(
    tmp_path: Path, between: Sequence[TrialStatus | None]
) -> None:
    """One less than ends a run, twice, with something else between: the run goes on."""
    ends = [CRASH] * (MOST_LOST - 1)
    assert len(ends) * 2 + len(between) == considered(tmp_path, [*ends, *between, *ends])


def test_a_streak_ends_the_run(tmp_path: Path) -> None:
    """As many in a row, however the run began."""
    with pytest.raises(CrashLoop, match=f"{MOST_LOST} trials in a row ended as crashed"):
        considered(tmp_path, [None, HANG, *[CRASH] * MOST_LOST, None])


@pytest.mark.parametrize("batch", [(), (Proposal(plan=Plan.of(())),)], ids=["nothing", "one plan"])
def test_a_search_that_asks_for_nothing_new_ends(
    tmp_path: Path, batch: Sequence[Proposal]
) -> None:
    """Neither trials nor seconds are spent so: without a bound of its own it would never end."""

    def asked() -> Search[None]:
        while True:
            yield tuple(batch)

    driver, ledger = driver_of(tmp_path, Simulated(lambda plan, feed: 0.1))
    with ledger, pytest.raises(BudgetSpent, match="choose another --strategy"):
        driver.run(asked())


def test_a_search_that_asks_again_for_all_it_knows_goes_on(tmp_path: Path) -> None:
    """A ranking is asked for again by each step that needs it, whatever the number of layers."""

    def asked() -> Search[int]:
        for _ in range(4):
            for number in range(1500):
                yield (Proposal(plan=Plan.of([number])),)
        return 1

    with driven(tmp_path, Simulated(lambda plan, feed: 0.1)) as driver:
        assert 1 == driver.run(asked())


def test_a_lost_executor_ends_the_run_as_crashes_do(tmp_path: Path) -> None:
    """What was found stands, and the trial is none: the run is resumed where there is a host."""

    def rule(plan: Plan, feed: Sample) -> float:
        del feed
        if plan:
            raise ExecutorError("no host can be reached", "start one")
        return 0.1

    with driven(tmp_path, Simulated(rule)) as driver:
        driver.consider_all([Proposal(plan=Plan.of(()))])
        with pytest.raises(CrashLoop, match=r"^no host can be reached; start one$"):
            driver.consider_all([Proposal(plan=Plan.of((1,)))])
        assert 1 == len(driver.trials)
