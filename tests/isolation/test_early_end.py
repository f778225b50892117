"""A run whose time ends outside of its trials has a result, whatever it was at then.

The clock is one that each look at it advances by a second, and nothing else, or one that an event
moves far ahead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tiny
from effort import nightly
from final_screens import screen
from precision_bisect.errors import ExitCode, RunFolderError
from precision_bisect.execution.local_executor import LOCAL
from precision_bisect.exports.finished import read_finished
from precision_bisect.graphs.load import load_model
from precision_bisect.options import Options
from precision_bisect.pipeline import run
from precision_bisect.pipeline.ladder import climb
from precision_bisect.precisions import PrecisionName
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.monitoring.events import Event, RunStarted, TrialsEnded
from precision_bisect.runs.monitoring.run_watch import look
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result, read_saved
from precision_bisect.runs.runfolder import LEDGER, RESULT
from precision_bisect.search.budget import OVERTIME, OVERTIME_S, Budget
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.next_steps import next_steps

LADDER: tuple[PrecisionName, ...] = ("fp16", "bf16", "fp32")
LEFT = 12
"""Seconds, that is looks, which writing a result takes at most."""


@dataclass
class Looks:
    """The clock; `begun` is when the search begins."""

    seconds: float = 0.0
    begun: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds

    def note(self, event: Event, /) -> None:
        """Observe a run."""
        if isinstance(event, RunStarted):
            self.begun.append(self.seconds)


@dataclass
class Events(Looks):
    """A clock that stands still until so many events, and then is far ahead."""

    most: float = math.inf
    events: list[Event] = field(default_factory=list)

    def __call__(self) -> float:
        return 0.0 if len(self.events) < self.most else 1e6

    def note(self, event: Event, /) -> None:
        """Observe a run."""
        self.events.append(event)


def search(
    folder: Path,
    patch: pytest.MonkeyPatch,
    most_s: float,
    ladder: Sequence[PrecisionName] = (),
    *,
    resume: bool = False,
    clock: Looks | None = None,
) -> tuple[Result, Looks]:
    """Search the small model within so many looks, or by another clock."""
    folder.mkdir(exist_ok=True)
    work = folder / f"work-{most_s:g}"
    work.mkdir()
    feeds = [{"x": np.random.default_rng(3).normal(1, 0.3, (1, 8)).astype(np.float32)}]
    given = Options(
        model=tiny.write_model(folder / "tiny.onnx"),
        inputs=feeds,
        tol=1e-2,
        out=folder / "run",
        threads=1,
        backend="emulated",
        max_time_s=most_s,
        ladder=tuple(ladder),
        resume=resume,
    )
    looks = clock or Looks()
    with patch.context() as patched, RunLock(given.folder) as lock:
        for module in (run, climb):
            patched.setattr(module, "Budget", partial(Budget, clock=looks))
        course = climb.climb if ladder else run.run_pair
        return course(given, looks.note, work, lock, LOCAL), looks


@pytest.mark.parametrize("ladder", [(), *nightly((LADDER,))])
@pytest.mark.parametrize("share", [0.02, 0.7, *nightly(0.2, 0.4, 0.5, 0.9)])
def test_wherever_the_time_ends_there_is_a_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    ladder: Sequence[PrecisionName],
) -> None:
    """Reading, types, reference, calibration, the switched graph, opening its sessions."""
    _, whole = search(tmp_path / "whole", monkeypatch, 1e9, ladder)
    most_s = float(int(share * (whole.begun[0] - OVERTIME_S) / (1 + OVERTIME)))
    result, looks = search(tmp_path / "cut", monkeypatch, most_s, ladder)
    assert (Status.BUDGET_EXHAUSTED, ExitCode.BUDGET) == (result.status, result.exit_code)
    assert looks.seconds <= (1 + OVERTIME) * most_s + OVERTIME_S + LEFT
    saved = read_result(tmp_path / "cut" / "run" / RESULT, "")
    assert (saved.status, saved.kept, saved.layers_total) == (result.status, [], False)
    assert not (tmp_path / "cut" / "run" / LEDGER).exists()


@pytest.mark.parametrize(
    ("ladder", "after"), [((), 0), (LADDER, 1), *nightly(((), 1), (LADDER, 0))]
)
def test_an_answer_stands_wherever_the_time_ends_after_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ladder: Sequence[PrecisionName],
    after: int,
) -> None:
    """Estimates of plans and what targets store look at the clock, too, outside of any trial."""
    whole = Events()
    expected, _ = search(tmp_path / "whole", monkeypatch, 1e3, ladder, clock=whole)
    ended = [type(event) for event in whole.events].index(TrialsEnded)
    clock = Events(most=ended + after)
    cut, _ = search(tmp_path / "cut", monkeypatch, 1e3, ladder, clock=clock)
    assert expected.kept and (expected.status, expected.kept) == (cut.status, cut.kept)


def test_each_layer_is_a_look_at_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of thousands of layers is not read, or made ready, in one go."""
    _, looks = search(tmp_path, monkeypatch, 1e9)
    assert looks.begun[0] >= 3 * len(tiny.STEPS)


def test_a_second_run_with_more_time_finds_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended early is in nobody's way, and what a resumed run has is not replaced."""
    early, _ = search(tmp_path, monkeypatch, 1.0)
    assert not early.layers_total
    saved = read_saved(tmp_path / "run").result
    assert "the time ended before the first trial" in screen(saved)
    with pytest.raises(RunFolderError, match="no trial to go on from; begin the run again"):
        read_ledger(tmp_path / "run" / LEDGER)
    model = load_model(tmp_path / "tiny.onnx")
    readers: Sequence[Callable[[Path], object]] = (
        *(look, read_source),
        partial(read_finished, model=model),
    )
    for read in readers:
        with pytest.raises(RunFolderError, match="ended before its first trial; begin it again"):
            read(tmp_path / "run")
    steps = next_steps(early, Path("tiny.onnx"))
    assert not [step for step in steps if "--resume" in " ".join(step.commands)]
    found, _ = search(tmp_path, monkeypatch, 1e9)
    assert (Status.FOUND, tiny.KEPT) == (found.status, list(found.kept))
    again, _ = search(tmp_path, monkeypatch, 2.0, resume=True)
    assert (found.status, found.kept) == (again.status, again.kept)
