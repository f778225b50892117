"""Trials that lose their process in a row end a run; with others between them they do not."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Sample, Search
from precision_bisect.search.driver import MOST_LOST, CrashLoop
from precision_bisect.trial import Outcome, Proposal, TrialStatus
from simulated import Simulated, driver_of

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

    driver, ledger = driver_of(folder, Simulated(rule))
    with ledger:
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
