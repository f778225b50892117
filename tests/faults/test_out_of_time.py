"""A build in another process that does not come back ends with the run's time, and loses nothing.

The clock stands still until a trial hangs, and is far ahead from then on.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from faults import subject
from faults.subject import KEPT
from patience import gone, wait_until
from precision_bisect.errors import ExitCode
from precision_bisect.pipeline import run
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.search.budget import Budget


def hung_since(folder: Path) -> float:
    """Return the seconds of a clock that a trial which hangs moves far ahead."""
    return 1e6 * bool(subject.hanging(folder))


# One, as in a build on a GPU, and several; before anything is known, and amid the search.
@pytest.mark.parametrize(("workers", "call"), [(1, 1), (1, 2), (1, 4), (2, 4), (1, 12)])
def test_a_trial_that_hangs_ends_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, call: int
) -> None:
    """The best plan that holds is told, the process is gone, and a resumed run finds the rest."""
    folder = subject.prepare(tmp_path / "subject")
    subject.order(folder, {"do": "hang", "call": call})
    with monkeypatch.context() as patch:
        patch.setattr(run, "Budget", partial(Budget, clock=partial(hung_since, folder)))
        cut = subject.search(folder, workers=workers, max_time_s=1000.0)
    assert (Status.BUDGET_EXHAUSTED, ExitCode.BUDGET) == (cut.status, cut.exit_code)
    assert read_result(folder / "run" / RESULT, "").status is cut.status
    pids = {pid for _, _, pid in subject.noted(folder)} - {os.getpid()}
    assert pids
    wait_until(lambda: all(map(gone, pids)))
    whole = subject.search(folder, workers=workers, resume=True)
    assert (Status.FOUND, KEPT) == (whole.status, list(whole.kept))
