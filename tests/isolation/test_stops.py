"""The end of the time passes wherever it meets a run: nothing that answers errors answers it."""

import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

import precision_bisect
import tiny
from effort import nightly
from precision_bisect.errors import ExitCode, PrecisionBisectError
from precision_bisect.machine import stopping
from precision_bisect.machine.stopping import Stopped, limited, look_at_clock, until
from precision_bisect.pipeline import run
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.search.budget import Budget


def place_of(frame: FrameType | None) -> str:
    """Return which function looks at the clock, and on whose behalf in what room above."""
    rooms: dict[str, str] = {}
    while frame is not None:
        _, inside, name = frame.f_code.co_filename.rpartition("/precision_bisect/")
        if inside and name != "machine/stopping.py":
            rooms.setdefault(name.partition("/")[0], f"{name}:{frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(rooms.values())


@dataclass
class Looks:
    """Has the time end as one of the places looks at the clock for the first time.

    `raised` has what each Stopped was to end: no block has two, unless something goes on in it.
    """

    at: str = ""
    places: dict[str, None] = field(default_factory=dict)
    over: bool = False
    raised: list[object] = field(default_factory=list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Look at each look of the main thread, in this process."""
        own, init = stopping.time_is_over, Stopped.__init__

        def looked() -> bool:
            main = threading.current_thread() is threading.main_thread()
            if main and stopping._LIMITS.over is not None:
                place = place_of(sys._getframe(1))
                self.places.setdefault(place)
                self.over |= place == self.at
            return own()

        def stopped(error: Stopped, message: str) -> None:
            init(error, message)
            self.raised.append(stopping._LIMITS.over)

        patch.setattr(stopping, "time_is_over", looked)
        patch.setattr(Stopped, "__init__", stopped)
        # What each loop looks at is enough; the signal would come anywhere.
        patch.setattr(stopping, "_UNHEEDED_S", 1e9)
        patch.setattr(run, "Budget", partial(Budget, clock=lambda: 1e6 if self.over else 0.0))


def searched(folder: Path, looks: Looks, patch: pytest.MonkeyPatch) -> Result:
    """Search the small model, with more time than it takes but where the looks end it."""
    tiny.write_with_samples(folder)
    with patch.context() as patched:
        looks.watch(patched)
        return precision_bisect.find(
            folder / "tiny.onnx",
            inputs=folder / "inputs.npz",
            tol=1e-2,
            threads=1,
            backend="emulated",
            max_time_s=1e5,
            out=folder / "run",
        )


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All places that look at the clock in a run that is not the first of its process."""
    searched(tmp_path_factory.mktemp("first"), Looks(), pytest.MonkeyPatch())
    looks = Looks()
    searched(tmp_path_factory.mktemp("whole"), looks, pytest.MonkeyPatch())
    assert not looks.raised
    return list(looks.places)


QUICK = (0.15, 0.5, 0.65, 0.8, 0.9)
SHARES = [share for number in range(40) if (share := number / 40) not in QUICK]


@pytest.mark.parametrize("share", [*QUICK, *nightly(*SHARES)])
def test_no_phase_goes_on_once_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[str], share: float
) -> None:
    """Reading, typing, ranking, search, advice, checks: each block is left at its first stop."""
    looks = Looks(at=places[int(share * len(places))])
    result = searched(tmp_path, looks, monkeypatch)
    assert looks.raised
    # Compared as objects, which all live: each block has one of its own.
    assert len({*map(id, looks.raised)}) == len(looks.raised), looks.at
    assert result.status in (Status.FOUND, Status.BUDGET_EXHAUSTED)
    assert result.status is read_result(tmp_path / "run" / RESULT, "").status


def test_a_stop_that_nothing_answers_is_an_error_of_this_package() -> None:
    """Who calls `find` knows that, and no class of the machine's."""
    with pytest.raises(PrecisionBisectError, match="time was up") as caught:  # noqa: SIM117
        with limited(1e6, None), until(lambda: True):
            look_at_clock()
    assert ExitCode.BUDGET is caught.value.exit_code
    assert not issubclass(Stopped, Exception)
