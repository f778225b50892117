"""The curve of whole runs: in `result.json`, over resumes, and by its own command."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from effort import nightly
from final_screens import words
from precision_bisect.errors import ExitCode, UsageError
from precision_bisect.graphs.load import load_model
from precision_bisect.options import Until
from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.results.unseen import Unseen
from precision_bisect.runs.runfolder import LEDGER
from precision_bisect.trial import Phase
from precision_bisect_reports.html.answer import answer_section
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.notebook import as_html


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the small model, its samples beside it."""
    return tiny.write_with_samples(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return the result of one uninterrupted run."""
    return tiny.search(model, tmp_path_factory.mktemp("whole"))


def test_culprits_are_named_with_what_each_brings(whole: Result) -> None:
    """The four layers that overflow, with the error without each and with all."""
    assert tiny.KEPT == [each.layer for each in whole.culprits]
    for each in whole.culprits:
        assert each.error_with is not None and each.error_without is not None
        assert each.error_with < 1e-2 < each.error_without
        assert "overflow" == each.cause
        assert each.evidence
        assert ";" not in each.evidence


@pytest.mark.parametrize("arguments", [(), ("--culprits-only",)])
def test_an_answer_is_not_lost_to_its_own_curve(
    model: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A curve of a run that has an answer is told to be there, and nothing is written."""
    run = tmp_path / "run"
    assert ExitCode.OK == tiny.command(model, run)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    first = "" if arguments else "curve"
    assert ExitCode.USAGE == tiny.command(model, run, "--resume", *arguments, first=first)
    assert "an answer, which has its curve; precision-bisect curve " in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


def test_culprits_alone_are_no_answer_of_a_search(model: Path, tmp_path: Path) -> None:
    """The curve is drawn after them."""
    assert ExitCode.OK == tiny.command(model, tmp_path / "run", "--culprits-only")
    few = read_saved(tmp_path / "run").result.curve
    assert ExitCode.OK == tiny.command(model, tmp_path / "run", "--resume", first="curve")
    assert len(few) < len(read_saved(tmp_path / "run").result.curve)


def test_the_curve_leads_from_all_low_beyond_the_answer(whole: Result) -> None:
    """Counts grow, the answer has its copies' figures, and errors do not grow on the whole."""
    counts = [each.kept_count for each in whole.curve]
    named = {each.point: each for each in whole.curve if each.point}
    assert sorted(counts) == counts
    assert 0 == named["all_low"].kept_count == counts[0]
    assert len(whole.kept) == named["answer"].kept_count
    assert whole.stability is not None
    assert whole.stability.error_median == named["answer"].error_median
    assert named["all_low"].error_median > 0.1 > named["answer"].error_median  # type: ignore[operator] # figures


def test_the_file_says_the_same(whole: Result) -> None:
    """`result.json` has both lists, and reads back."""
    assert whole.out is not None
    told = json.loads((whole.out / "result.json").read_text())
    assert [asdict(each) for each in whole.culprits] == told["culprits"]
    assert [asdict(each) for each in whole.curve] == told["curve"]
    read = read_saved(whole.out).result
    assert (whole.culprits, whole.curve) == (read.culprits, read.curve)
    assert [asdict(each) for each in read.advice] == told["advice"]


def test_a_run_cut_short_has_the_curve_as_far_as_it_went(
    model: Path, whole: Result, tmp_path: Path
) -> None:
    """Its culprits are known after one evaluation, and the plan that passed is the best so far."""
    result = tiny.search(model, tmp_path, max_trials=5)
    assert (Status.BUDGET_EXHAUSTED, tiny.KEPT) == (result.status, result.kept)
    assert tiny.KEPT == [each.layer for each in result.culprits]
    # Every layer low was judged on the samples alone so far, which is another figure.
    assert [4] == [each.kept_count for each in result.curve]
    again = tiny.search(model, tmp_path, resume=True)
    assert whole.curve == again.curve


def test_other_strategies_search_first(model: Path, tmp_path: Path) -> None:
    """Their trials are those of the strategy; the curve follows the answer."""
    phases: list[Phase] = []

    def observe(event: Any) -> None:
        if hasattr(event, "phase"):
            phases.append(event.phase)

    result = tiny.search(model, tmp_path, strategy="ddmin", observer=observe)
    assert tiny.KEPT == [each.layer for each in result.culprits]
    assert phases.index(Phase.SEARCH) < phases.index(Phase.CURVE)


def test_nothing_to_keep_has_no_curve(model: Path, tmp_path: Path) -> None:
    """Both lists are there, and empty."""
    told = tiny.search(model, tmp_path, tol=10.0).to_json()
    assert ("nothing_to_keep", [], []) == (told["status"], told["curve"], told["culprits"])


def test_culprits_alone_that_pass_are_an_answer(model: Path, tmp_path: Path) -> None:
    """The run ends with them, judged on copies, exported, and not certified."""
    assert ExitCode.OK == tiny.command(model, tmp_path, "--culprits-only")
    result = read_saved(tmp_path).result
    assert (Status.FOUND, tiny.KEPT) == (result.status, result.kept)
    assert result.stability is not None and 16 == result.stability.copies
    assert {"--culprits-only"} == {need.reason for need in result.certificate.evidence}
    assert (tmp_path / "model.mixed.onnx").exists()


@pytest.mark.parametrize("until", [*nightly("answer"), "culprits"])
def test_held_out_samples_judge_the_culprits_too(
    model: Path, tmp_path: Path, until: Until
) -> None:
    """However far the run goes, it is told that the plan fails on the sample held out."""
    near, far = tiny.samples()[0], {"x": tiny.samples()[0]["x"] * np.float32(1e-3)}
    asked = {"inputs": [far, near], "holdout": 1, "until": until}
    result = tiny.search(model, tmp_path, **asked)
    assert Unseen(judged=1, failed=1, took_part=1) == result.unseen


def test_culprits_alone_that_fail_end_the_run_early(model: Path, tmp_path: Path) -> None:
    """Their plan is exported all the same, and its error told; a search goes on from there."""
    result = tiny.search(model, tmp_path, tol=5e-4, until="culprits")
    assert (Status.STOPPED, ExitCode.BUDGET) == (result.status, result.exit_code)
    assert tiny.KEPT == result.kept
    assert result.error is not None and result.error > 5e-4
    assert "do not suffice" in result.message
    assert ["all_low", "culprits"] == [each.point for each in result.curve]
    assert (tmp_path / "model.mixed.onnx").exists()
    found = tiny.search(model, tmp_path, tol=5e-4, resume=True)
    assert Status.FOUND is found.status


def test_the_command_draws_the_curve_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table, no answer, no exports; the search goes on from its ledger."""
    assert ExitCode.OK == tiny.command(model, tmp_path, first="curve")
    shown = capsys.readouterr().out
    assert "No answer yet: only the curve was asked for" in shown
    assert "4 layers break FP16 (overflow), n4_Mul, n5_Sqrt and 2 more:" in " ".join(shown.split())
    told = json.loads((tmp_path / "result.json").read_text())
    assert ("stopped", [], []) == (told["status"], told["kept"], told["rungs"])
    assert "culprits" in [each["point"] for each in told["curve"]]
    assert not (tmp_path / "model.mixed.onnx").exists()
    assert ExitCode.OK == tiny.command(model, tmp_path, "--resume")
    assert tiny.KEPT == read_saved(tmp_path).result.kept


def test_what_has_no_curve_is_refused(model: Path, tmp_path: Path) -> None:
    """One line says why, before anything is written: a ladder, a check without figures."""
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="no use for ladder"):
        tiny.search(model, out, until="curve", ladder=("bf16", "fp16", "fp32"))
    check = tmp_path / "check.py"
    check.write_text("def judge(outputs, reference):\n    return str(outputs) == str(reference)\n")
    with pytest.raises(UsageError, match="needs errors as figures"):
        tiny.search(model, out, until="culprits", tol=None, check=f"{check}:judge")
    assert not out.exists()


def test_one_range_is_told_of_an_answer(whole: Result) -> None:
    """Screen, notebook, page and curve say the same figure of it."""
    (answer,) = [each for each in whole.curve if each.point == "answer"]
    assert whole.error is not None and whole.error_max is not None
    assert answer.error_max == whole.error_max >= whole.error
    shown = f"error {whole.error:.4g} to {whole.error_max:.4g}, tolerance 0.01"
    assert shown in words(whole)
    assert ", worst error" not in words(whole)
    assert whole.error_range in as_html(whole)
    told = answer_section(read_source(whole.out or Path()))
    assert (whole.error, whole.error_max) == (told["error"], told["error_max"])


def test_points_are_judged_alike(whole: Result, model: Path) -> None:
    """Each that has a figure was judged on copies, so that all stand on one line."""
    recorded = read_ledger((whole.out or Path()) / LEDGER).own
    index = {str(name): place for place, name in enumerate(load_model(model).table.names)}
    finite = [p for p in whole.curve if p.error_median is not None and p.error_median < math.inf]
    assert {0, 4} <= {point.kept_count for point in finite}
    for point in finite:
        plan = Plan.of(index[name] for name in point.kept)
        judged = [each for each in recorded if each.proposal.plan == plan]
        assert any(each.outcome.evidence.stability for each in judged)
