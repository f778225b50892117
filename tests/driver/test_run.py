"""Whole runs of a small model: endings, budgets, Ctrl-C, and going on afterwards."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from effort import nightly
from precision_bisect.errors import ExitCode, RunFolderError
from precision_bisect.runs.belonging import exported_texts
from precision_bisect.runs.monitoring.events import Event, TrialStarted
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import EXPORTS

CANDIDATES = len(tiny.STEPS)
EXAMPLE = Path(__file__).parents[2] / "examples" / "nafnet"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the small model."""
    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return the result of one uninterrupted run."""
    return tiny.search(model, tmp_path_factory.mktemp("whole"))


def facts(result: Result) -> dict[str, Any]:
    """Return what two runs of the same search must agree on."""
    found = result.to_json()
    del found["wall_s"]
    return found


def interrupting(trial: int = 0) -> tuple[list[Event], Callable[[Event], None]]:
    """Return a list, and an observer that adds trials to it and presses Ctrl-C in one of them."""
    started: list[Event] = []

    def observe(event: Event) -> None:
        if isinstance(event, TrialStarted):
            started.append(event)
            if len(started) == trial:
                raise KeyboardInterrupt

    return started, observe


def test_the_result_says_whether_inputs_were_made_up(whole: Result, tmp_path: Path) -> None:
    """Samples that were given are told from made-up ones, and counted with those held out."""
    assert whole.to_json()["inputs"] == {"synthetic": False, "samples": 1, "distinct": 1}
    model = tiny.write_model(tmp_path / "tiny.onnx")
    made = tiny.search(model, tmp_path / "run", inputs=None, synthetic=2, holdout=1)
    assert made.to_json()["inputs"] == {
        "synthetic": True,
        "samples": 3,
        "distinct": 3,
    }


def test_the_answer_is_certified(whole: Result) -> None:
    """Exactly the four layers that need it are kept, each with its own failed drop."""
    assert (whole.status, whole.kept) == (Status.FOUND, tiny.KEPT)
    assert whole.certificate.minimal
    assert (whole.certificate.checked, whole.certificate.unchecked) == (tiny.KEPT, [])
    assert whole.evaluations >= whole.trials + CANDIDATES


def test_resuming_a_finished_run_evaluates_nothing(model: Path, tmp_path: Path) -> None:
    """A run that is complete gives the same result again without a trial; its time adds up."""
    first = tiny.search(model, tmp_path)
    started, observer = interrupting()
    again = tiny.search(model, tmp_path, resume=True, observer=observer)
    assert facts(again) == facts(first)
    assert started == []
    assert again.wall_s > first.wall_s


@pytest.mark.parametrize("step", [7, *nightly(1)])
def test_a_spent_budget_is_continued_with_a_larger_one(
    step: int, model: Path, whole: Result, tmp_path: Path
) -> None:
    """Some trials more at a time lead, through safe answers only, to the same result.

    Once there is an answer, a budget that is spent cuts only the curve short.
    """
    sizes = []
    for most in range(1, whole.trials, step):
        result = tiny.search(model, tmp_path, resume=True, max_trials=most)
        if result.status is Status.FOUND:
            assert (result.kept, result.certificate) == (whole.kept, whole.certificate)
            continue
        assert result.status is Status.BUDGET_EXHAUSTED
        assert result.trials == most
        if not result.rungs:
            assert (result.kept, result.error) == ([], None)
            continue
        assert set(tiny.KEPT) <= set(result.kept)
        checked, unchecked = result.certificate.checked, result.certificate.unchecked
        assert sorted([*checked, *unchecked]) == sorted(result.kept)
        sizes.append(len(result.kept))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] < CANDIDATES
    assert facts(tiny.search(model, tmp_path, resume=True)) == facts(whole)


def test_a_run_cut_short_in_its_ranking_has_the_first_plan(model: Path, tmp_path: Path) -> None:
    """What leaves the range of FP16 was kept before it, and passed."""
    _, observer = interrupting(7)
    result = tiny.search(model, tmp_path, observer=observer)
    assert (result.status, result.exit_code) == (Status.INTERRUPTED, ExitCode.INTERRUPTED)
    assert tiny.KEPT == result.kept
    assert result.error is not None and result.error < 1e-2


def test_a_run_cut_short_before_a_plan_passed_has_no_answer(model: Path, tmp_path: Path) -> None:
    """The plan that keeps everything, the one that has passed, is no best so far."""
    _, observer = interrupting(4)
    result = tiny.search(model, tmp_path, observer=observer)
    assert (result.status, result.exit_code) == (Status.INTERRUPTED, ExitCode.INTERRUPTED)
    assert (result.kept, result.rungs, result.error) == ([], [], None)
    assert not any((tmp_path / name).exists() for name in (*EXPORTS, *exported_texts()))
    assert json.loads((tmp_path / "status.json").read_text())["best"] is None


def test_a_spent_budget_is_named(model: Path, tmp_path: Path) -> None:
    """The limit that was spent is named, and the exit code is that of a spent budget."""
    result = tiny.search(model, tmp_path, max_trials=3)
    assert result.exit_code is ExitCode.BUDGET
    assert not result.certificate.minimal
    result = tiny.search(model, tmp_path, resume=True, max_time_s=1e-9)
    assert result.status is Status.BUDGET_EXHAUSTED
    assert (result.kept, result.rungs) == ([], [])
    assert "--max-time of 1e-09 s is spent" in result.message


@pytest.mark.parametrize("each", [8, *nightly(3)])
def test_ctrl_c_anywhere_is_continued(
    each: int, model: Path, whole: Result, tmp_path: Path
) -> None:
    """Ctrl-C during every so many trials writes the best so far and loses but that trial.

    Once there is an answer it cuts only short what completes and explains it.
    """
    results: list[Result] = []
    total = 0
    while not results or results[-1].status is Status.INTERRUPTED:
        started, observer = interrupting(each)
        results.append(tiny.search(model, tmp_path, resume=True, observer=observer))
        # The trial that was cut off is tried again, and no other is begun after it.
        assert len(started) <= each
        total += len(started) - (len(started) >= each)
    started, observer = interrupting()
    completed = tiny.search(model, tmp_path, resume=True, observer=observer)
    total += len(started)
    assert (results[-1].status, results[-1].kept) == (whole.status, whole.kept)
    assert facts(completed) == facts(whole)
    assert total == whole.evaluations


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"inputs": [{"x": np.full((1, 8), 1.5, np.float32)}]}, "other inputs"),
        ({"inputs": tiny.samples(2)}, "other inputs"),
        ({"inputs": tiny.samples(2), "holdout": 1}, "holdout was 0, now 1"),
        ({"tol": 2e-2}, ": tol was 0.01, now 0.02"),
        ({"metric": "mean"}, ": metric was elementwise, now mean"),
        ({"low": "bf16"}, "low was fp16, now bf16"),
        ({"strategy": "ddmin"}, "strategy was guided, now ddmin"),
        ({"seed": 7}, "seed was 0, now 7"),
    ],
    ids=["inputs", "samples", "holdout", "tol", "metric", "low", "strategy", "seed"],
)
def test_another_search_cannot_be_resumed(
    model: Path, whole: Result, change: dict[str, Any], named: str
) -> None:
    """A run is only continued with what it was begun with, and the difference is named."""
    assert whole.out is not None
    with pytest.raises(RunFolderError, match="cannot resume") as refused:
        tiny.search(model, whole.out, resume=True, **change)
    assert named in refused.value.message


def test_another_model_cannot_be_resumed(whole: Result, tmp_path: Path) -> None:
    """A changed weight makes another model."""
    assert whole.out is not None
    other = tiny.write_model(tmp_path / "tiny.onnx", scale=1.5)
    with pytest.raises(RunFolderError, match="another model"):
        tiny.search(other, whole.out, resume=True)


def test_overwrite_begins_anew(model: Path, tmp_path: Path) -> None:
    """With overwrite the old run is gone, whatever it was; without, it is not touched."""
    tiny.search(model, tmp_path, low="bf16", tol=0.5)
    with pytest.raises(RunFolderError, match="already holds a run"):
        tiny.search(model, tmp_path)
    result = tiny.search(model, tmp_path, overwrite=True)
    assert result.kept == tiny.KEPT


def test_an_answer_survives_a_typed_model_that_cannot_be_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The typed model is as large as the weights; without room for it the result is there."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("precision_bisect.exports.write.save_typed", full)
    result = tiny.search(model, tmp_path)
    assert (result.status, result.kept) == (Status.FOUND, tiny.KEPT)
    assert 1 == len(result.notes)
    assert (tmp_path / "result.json").exists()
