"""The plan to deploy, and TF32: a whole run of the emulator, its exports, and `--resume`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from final_screens import screen, words
from models import parse, save, with_weights
from precision_bisect import find
from precision_bisect.commandline.export_command import export
from precision_bisect.errors import UsageError
from precision_bisect.pipeline.fastest import FIRST_DRAW
from precision_bisect.protocols import Sample
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import LEDGER, MIXED_MODEL, REPORT, TRTEXEC
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Verdict
from precision_bisect_reports.curve import exported

TOLERANCE = 5e-3
BODY = """(float[16, 64] x) => (float[16, 64] y) <float up = {300}, float down = {1.1111111e-5}> {
  [mm0] a = MatMul(x, w0) [act0] b = Tanh(a)
  [up_a] c = Mul(b, up) [sq_a] d = Mul(c, c) [down_a] e = Mul(d, down)
  [up_b] f = Mul(e, up) [sq_b] g = Mul(f, f) [down_b] h = Mul(g, down)
  [mm1] i = MatMul(h, w1) [act1] y = Tanh(i)
}"""
"""Two squares that overflow, with a factor between them that holds in FP16: Casts around it cost
more than it does."""


def samples() -> list[Sample]:
    """Return four samples."""
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(0, 2, (16, 64)).astype(np.float32)} for _ in range(4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a model whose answer has a gap."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(0, 0.125, (64, 64)).astype(np.float32) for i in range(2)}
    return save(with_weights(parse(BODY), weights), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return the result of one run."""
    out = tmp_path_factory.mktemp("run")
    return find(model, tol=TOLERANCE, inputs=samples(), out=out, threads=1)


def test_the_plan_to_deploy_is_faster_and_was_judged_on_copies(result: Result) -> None:
    """It closes the gap; the ledger has its trial on copies, and the answer stays the smallest."""
    assert ["sq_a", "down_a", "sq_b", "down_b"] == list(result.kept)
    plan = result.deploy
    assert plan is not None and plan.answer_time is not None and plan.error is not None
    assert ["sq_a", "down_a", "up_b", "sq_b", "down_b"] == list(plan.kept)
    assert plan.time < plan.answer_time < 1 and plan.estimated
    assert plan.error <= TOLERANCE
    assert result.out is not None
    recorded = read_ledger(result.out / LEDGER)
    (trial,) = [
        each
        for each in recorded.own
        if each.proposal.draw >= FIRST_DRAW and len(each.proposal.plan) == len(plan.kept)
    ]
    stability = trial.outcome.evidence.stability
    assert trial.outcome.verdict is Verdict.PASS
    assert stability is not None and (16, 0) == (stability.copies, stability.failed)
    assert plan.error == max(trial.outcome.error or 0.0, stability.error_max or 0.0)


def test_the_screen_and_the_report_have_both_in_a_row(result: Result) -> None:
    """They say what the plan to deploy comes to, and what TF32 does to FP32 and to the answer."""
    assert result.deploy is not None and result.tf32 is not None and result.tf32.holds
    gain = round(100 * ((result.deploy.answer_time or 0.0) / result.deploy.time - 1))
    row = f"estimated {gain}% faster than the answer; --export-point deploy"
    assert gain > 0 and row in words(result)
    assert "FP32 holds with TF32, the libraries' default" in words(result)
    assert result.out is not None
    report = (result.out / REPORT).read_text()
    assert "To deploy" in report and "With TF32" in report
    same = replace(result, deploy=replace(result.deploy, kept=result.kept))
    assert "deploy " not in screen(same)


def test_its_exports_open_and_hold_its_layers(result: Result, model: Path) -> None:
    """`export --export-point deploy` writes a file that opens and keeps those layers."""
    assert result.out is not None and result.deploy is not None
    folder = export(model, result.out, None, EngineSettings(), "deploy").folder
    assert result.out / "point-deploy" == folder
    told = {each.key: each.value for each in onnx.load(folder / MIXED_MODEL).metadata_props}
    assert sorted(result.deploy.kept) == sorted(json.loads(told["precision_bisect.layers"]))
    assert "(the plan to deploy)" in (folder / TRTEXEC).read_text()
    session = onnxruntime.InferenceSession(folder / MIXED_MODEL)
    for sample in samples():
        (got,) = session.run(None, sample)
        assert np.isfinite(got).all()


def test_a_run_exports_it_and_goes_on_to_the_same(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """A run whose search is cut off before it goes on to the same plan, and exports it."""
    cut = find(model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, max_trials=6)
    assert (Status.BUDGET_EXHAUSTED, None) == (cut.status, cut.deploy)
    whole = find(
        model,
        tol=TOLERANCE,
        inputs=samples(),
        out=tmp_path,
        threads=1,
        resume=True,
        export_point="deploy",
    )
    assert (result.kept, result.deploy) == (whole.kept, whole.deploy)
    assert ("deploy", "the plan to deploy: 5 layers kept") == (whole.export_point, exported(whole))
    assert whole.deployment is not None and whole.deployment.recheck is not None
    assert "not_judged" == whole.deployment.recheck.outcome
    assert "--export-point deploy" not in words(whole)


def test_there_is_none_where_nothing_is_kept(model: Path, tmp_path: Path) -> None:
    """The point is refused in one line, and a run that was asked for it exports its answer."""
    small = [{"x": np.float32(0.1) * sample["x"]} for sample in samples()]
    asked = find(model, tol=10.0, inputs=small, out=tmp_path, threads=1, export_point="deploy")
    assert (Status.NOTHING_TO_KEEP, None, "answer") == (
        asked.status,
        asked.deploy,
        asked.export_point,
    )
    refused = "--export-point deploy: the run has no plan that is faster than its answer"
    assert any(refused in note for note in asked.notes)
    with pytest.raises(UsageError, match="no plan that is faster"):
        export(model, tmp_path, None, EngineSettings(), "deploy")
