"""The plan to deploy, and TF32: a whole run of the emulator, its exports, and `--resume`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from final_screens import words
from models import parse, save, with_weights
from precision_bisect import find
from precision_bisect.commandline.export_command import export
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.fastest import FIRST_DRAW, SAFER
from precision_bisect.pipeline.reopening import reopen
from precision_bisect.protocols import Sample
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.chosen_point import kept_in_files
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.runs.runfolder import (
    LEDGER,
    MIXED_MODEL,
    REPORT,
    RESULT,
    RUN_SCRIPT,
    TRTEXEC,
)
from precision_bisect.runs.typed_json import typed
from precision_bisect.search.precision_curve import FEW_COPIES
from precision_bisect.search.rounding_law import worst
from precision_bisect.settings.engine_settings import EngineSettings, Tf32
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Kind, Phase, SampleSet, Verdict
from precision_bisect_reports.speed import how_fast

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
    assert plan is not None and plan.error is not None
    assert {"up_b", *result.kept} <= {*plan.kept}
    assert plan.time < plan.answer_time and plan.estimated
    assert plan.error <= TOLERANCE
    assert result.out is not None
    (trial,) = [
        trial
        for trial in read_ledger(result.out / LEDGER).trials
        if trial.proposal.phase is Phase.SPEED and len(trial.proposal.plan) == len(plan.kept)
    ]
    assert (True, TF32) == (plan.tf32, trial.proposal.case)
    assert trial.proposal.draw > FIRST_DRAW
    stability = trial.outcome.evidence.stability
    assert trial.outcome.verdict is Verdict.PASS
    assert stability is not None and (16, 0) == (stability.copies, stability.failed)
    assert plan.error == max(trial.outcome.error or 0.0, stability.error_max or 0.0)


def test_what_leaves_the_house_is_the_plan_to_deploy(result: Result, model: Path) -> None:
    """The files hold it by default, and so does `export`; promises are said to be of it."""
    assert result.out is not None and result.deploy is not None
    assert ("deploy", "deploy") == (result.export_point, result.promises_of)
    assert sorted(result.deploy.kept) == layers_in(result.out)
    again = export(model, result.out, None, {}).folder
    assert (result.out, sorted(result.deploy.kept)) == (again, layers_in(again))
    fewest = export(model, result.out, None, {}, "fewest").folder
    assert result.out / "point-fewest" == fewest
    assert sorted(result.kept) == layers_in(fewest)
    written = onnx.load(result.out / MIXED_MODEL).graph
    assert result.deploy.casts == sum(node.op_type == "Cast" for node in written.node)
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in written.initializer]
    floats = [array.nbytes for array in weights if array.dtype.kind == "f"]
    assert result.deploy.weight_bytes == sum(floats) < result.deploy.high_weight_bytes
    session = onnxruntime.InferenceSession(result.out / MIXED_MODEL)
    for sample in samples():
        (got,) = session.run(None, sample)
        assert np.isfinite(got).all()


def test_fp32_as_libraries_run_it_is_judged_before_the_search(result: Result) -> None:
    """In TF32, and what stays FP32 in the plan to deploy so, too: its files say so."""
    assert result.out is not None and result.tf32 is not None and result.deploy is not None
    first = read_ledger(result.out / LEDGER).trials[0]
    names = (first.proposal.case, first.proposal.phase, len(first.proposal.plan))
    assert (TF32, Phase.PREFLIGHT, result.candidates) == names
    assert result.tf32.fp32_error == worst(first.outcome)
    assert result.deploy.error == result.tf32.error
    assert result.deployment is not None and result.deployment.polygraphy is not None
    assert "1" == result.deployment.provider_options["use_tf32"]
    assert "--tf32" in result.deployment.polygraphy
    assert "noTF32" not in (result.out / TRTEXEC).read_text()
    assert "TF32 on" in words(result)


def test_what_decides_passes_on_all_copies(result: Result) -> None:
    """FP32 in TF32 is a rival, and the ground on which plans are judged so: no fewer for it."""
    assert result.out is not None
    copies = {
        (trial.proposal.case, trial.proposal.phase): stability.copies
        for trial in read_ledger(result.out / LEDGER).trials
        if trial.proposal.phase not in FEW_COPIES
        and trial.outcome.passed
        and (stability := trial.outcome.evidence.stability)
    }
    assert {(TF32, Phase.PREFLIGHT), (TF32, Phase.SPEED), ("", Phase.RECHECK)} <= copies.keys()
    assert {16} == {*copies.values()}


def test_the_fewest_have_it_on_where_it_changes_nothing(result: Result, model: Path) -> None:
    """They were certified without TF32, which rounds products alone, and those run in FP16."""
    folder = export(model, result.out or Path(), None, {}, "fewest").folder
    assert "noTF32" not in (folder / TRTEXEC).read_text()
    assert "'use_tf32': '1'" in (folder / RUN_SCRIPT).read_text()


def limited(result: Result, model: Path, out: Path, share: float) -> Result:
    """Search by so large a share of the error that FP32 has in TF32."""
    assert result.tf32 is not None and result.tf32.fp32_error
    limit = share * result.tf32.fp32_error
    return find(model, tol=limit, inputs=samples(), out=out, threads=1, certify="none")


def test_a_plan_is_deployed_without_it_where_it_fails_so(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """Its products stay FP32, too coarse in TF32: its files and scripts leave it off."""
    run = limited(result, model, tmp_path, 0.9)
    assert run.tf32 is not None and run.tf32.fp32_passed is False and run.deploy is not None
    products = {"mm0", "mm1"}.intersection(run.deploy.kept)
    assert products and not (run.tf32_on or run.deploy.tf32 or run.tf32.passed)
    assert "noTF32" in (tmp_path / TRTEXEC).read_text()
    assert run.deployment is not None and "0" == run.deployment.provider_options["use_tf32"]
    assert "leave TF32 off" in words(run)
    assert not reopen(model, tmp_path, {}).finished.options.engine.in_tf32


def test_fp32_with_it_is_no_rival_where_unseen_inputs_may_be_over(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """It holds on these samples with no room: a plan that is safe is deployed, or FP32 alone."""
    run = limited(result, model, tmp_path, 1.2)
    assert run.tf32 is not None and run.tf32.fp32_passed and run.deploy is not None
    assert not as_safe(run.tf32.fp32_unseen, None) and as_safe(run.deploy.unseen_share, None)
    assert not run.deploy.rivals_tf32(run.tf32)
    assert "of unseen inputs may be over" in words(run) and "TF32 holds" not in words(run)


def test_products_that_no_plan_changes_have_tf32_as_well(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """Else the model itself would be called the plan to deploy, which libraries run in TF32."""
    assert result.tf32 is not None and result.tf32.fp32_error
    limit, products = 0.9 * result.tf32.fp32_error, ["mm0", "mm1"]
    run = find(model, tol=limit, inputs=samples(), out=tmp_path, threads=1, keep=products)
    assert run.tf32 is not None and (run.tf32.fp32_error or 0) > limit
    assert (False, False) == (run.tf32.fp32_passed, run.tf32_on)


def layers_in(folder: Path) -> list[str]:
    """Return the layers that the typed model says to keep."""
    told = {each.key: each.value for each in onnx.load(folder / MIXED_MODEL).metadata_props}
    return sorted(json.loads(told["precision_bisect.layers"]))


def test_a_run_that_exports_the_fewest_goes_on_with_those(model: Path, tmp_path: Path) -> None:
    """`export`, `verify` and `target` take what its files hold, and leave those as they are."""
    run = find(
        model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, export_point="fewest"
    )
    assert run.deploy is not None and not run.deploys_fewest
    assert sorted(run.kept) == layers_in(tmp_path)
    assert sorted(kept_in_files(run)[1]) == sorted(reopen(model, tmp_path, {}).finished.kept)
    assert tmp_path == export(model, tmp_path, None, {}).folder
    deploy = export(model, tmp_path, None, {}, "deploy").folder
    assert tmp_path / "point-deploy" == deploy
    assert sorted(run.deploy.kept) == layers_in(deploy)
    assert sorted(run.kept) == sorted(kept_in_files(run)[1]) == layers_in(tmp_path)


def test_a_run_that_exports_a_point_of_the_curve_goes_on_with_that(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """`verify` and `target` read the plan whose files were written."""
    count = max(point.kept_count for point in result.curve)
    run = find(
        model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, export_point=str(count)
    )
    finished = reopen(model, tmp_path, {}).finished
    assert str(count) == run.export_point == finished.point
    assert sorted(finished.kept) == layers_in(tmp_path) == sorted(kept_in_files(run)[1])
    assert count == len(finished.kept)
    assert tmp_path == export(model, tmp_path, None, {}).folder


def test_the_screen_and_the_report_have_all_three(result: Result) -> None:
    """The fewest layers, the plan to deploy beside them, and FP32 as the libraries run it."""
    assert result.deploy is not None and result.tf32 is not None and result.tf32.holds
    gain = round(100 * (result.deploy.answer_time / result.deploy.time - 1))
    count = len(result.deploy.kept)
    assert f"the fastest mixed plan ({count} layers), which is no faster than FP32" in words(
        result
    )
    # Of layers as small as these it takes longer to launch them than to compute.
    assert gain > 0 and result.deploy.time >= 1 >= result.deploy.fp32_tf32_time
    assert "deploy FP32: TF32 holds (error" in words(result)
    assert result.out is not None
    report = (result.out / REPORT).read_text()
    assert all(title in report for title in ('"deploy":"FP32', '["How fast",', '["TF32",'))
    told = how_fast(result)
    assert told in report and told in " ".join(words(result).split())
    figures = json.loads((result.out / RESULT).read_text())["deploy"]
    shares = figures["low_share"]
    assert f"{figures['casts']} Cast" in told and f"{figures['rank_correlation']:.2f}" in told
    assert f"{100 * shares['multiplications']:.0f}% of the multiplications" in told
    assert f"{100 * shares['bytes']:.0f}% of the bytes" in told


def test_what_this_version_wrote_before_is_read(result: Result) -> None:
    """The key that was added later may be missing; none of those that were there is."""
    assert result.out is not None and result.deploy is not None
    content = json.loads((result.out / RESULT).read_text())["deploy"]
    assert content["tf32_time"] <= content["time"]
    before = {key: content[key] for key in content if key != "rank_correlation"}
    assert result.deploy == typed(PlanToDeploy, before)


def test_a_run_that_is_cut_off_goes_on_to_the_same(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """Cut off before it has a plan to deploy, a run goes on to the same one."""
    cut = find(model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, max_trials=6)
    assert (Status.BUDGET_EXHAUSTED, None) == (cut.status, cut.deploy)
    whole = find(model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, resume=True)
    assert (result.kept, result.deploy) == (whole.kept, whole.deploy)
    assert whole.rechecked is not None and "not_judged" == whole.rechecked.outcome


@pytest.mark.parametrize("tf32", ["on", "off"])
def test_tf32_is_judged_as_asked_for(
    result: Result, model: Path, tmp_path: Path, tf32: Tf32
) -> None:
    """With it on every layer high has its rounding, too; off, nothing is said of it."""
    settings = EngineSettings(tf32=tf32)
    run = find(model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, engine=settings)
    assert result.tf32 is not None and result.tf32.fp32_error and run.tf32 is None
    names = load_model(model).table.names
    (high,) = [
        trial.outcome.error or 0.0
        for trial in read_ledger(tmp_path / LEDGER).own
        if len(trial.proposal.plan) == len(names) and trial.proposal.kind is Kind.JUDGE
    ]
    assert run.deploy is not None and not run.deploy.tf32
    assert tf32 == "on" or result.kept == run.kept
    share = high / result.tf32.fp32_error
    assert share > 0.5 if tf32 == "on" else share < 0.01


def test_without_room_in_tf32_plans_are_judged_without(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """FP32 holds in TF32, and takes most of the limit: what is added has to do without."""
    assert result.tf32 is not None and result.tf32.fp32_error
    limit = 1.1 * result.tf32.fp32_error
    run = find(model, tol=limit, inputs=samples(), out=tmp_path, threads=1)
    assert run.tf32 is not None and run.tf32.fp32_passed
    assert run.deploy is not None and not run.deploy.tf32
    assert {"", TF32} >= {
        trial.proposal.case
        for trial in read_ledger(tmp_path / LEDGER).trials
        if trial.proposal.phase in (Phase.SPEED, Phase.PREFLIGHT)
    }


@pytest.mark.parametrize("options", [{"objective": "fewest"}, {"strategy": "ddmin"}])
def test_the_fewest_alone(
    result: Result, model: Path, tmp_path: Path, options: Mapping[str, Any]
) -> None:
    """Where they are the objective, and of a strategy asked for by name, nothing else is found."""
    fewest = find(model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, **options)
    assert (result.kept, result.error, None) == (fewest.kept, fewest.error, fewest.deploy)
    assert ("fewest", "fewest") == (fewest.export_point, fewest.promises_of)
    assert sorted(fewest.kept) == layers_in(tmp_path)


@pytest.mark.parametrize(("batch", "fp32_wins"), [(16, True), (2**16, False)])
def test_where_nothing_is_kept_every_layer_low_stands_beside_fp32(
    model: Path, tmp_path: Path, batch: int, *, fp32_wins: bool
) -> None:
    """By estimate, and in no trial more: two Casts cost more than so small a network saves."""
    small = [{"x": np.float32(0.1) * sample["x"]} for sample in samples()]
    engine = EngineSettings(time_batch=batch)
    run = find(model, tol=10.0, inputs=small, out=tmp_path, threads=1, engine=engine)
    assert Status.NOTHING_TO_KEEP is run.status and run.deploy is not None
    assert ("deploy", "deploy", ()) == (run.export_point, run.promises_of, (*run.deploy.kept,))
    assert fp32_wins is run.fp32_wins and run.tf32_on is run.deploy.tf32 is True
    beside = "as fast as every layer in FP16" if fp32_wins else "every layer in FP16; by estimate"
    assert beside in words(run) and ("deploy FP32: TF32 holds" in words(run)) is fp32_wins
    phases = {trial.proposal.phase for trial in read_ledger(tmp_path / LEDGER).trials}
    assert Phase.SPEED not in phases
    assert tmp_path == export(model, tmp_path, None, {}, "deploy").folder
    assert [] == layers_in(tmp_path)


def test_where_nothing_is_kept_but_unsafe_nothing_is_said_to_break(
    model: Path, tmp_path: Path
) -> None:
    """Layers are ranked for a safer plan, each once by one sample; then two are judged at most."""
    small = [{"x": np.float32(0.1) * sample["x"]} for sample in samples()]
    loose = find(model, tol=10.0, inputs=small, out=tmp_path / "loose", threads=1)
    assert loose.error_max is not None
    limit = 1.2 * loose.error_max
    run = find(model, tol=limit, inputs=small, out=tmp_path / "unsafe", threads=1)
    assert Status.NOTHING_TO_KEEP is run.status and run.deploy is not None
    assert not (run.curve or run.culprits) and "breaks FP16" not in words(run)
    trials = read_ledger(tmp_path / "unsafe" / LEDGER).trials
    ranking = [trial for trial in trials if trial.proposal.phase is Phase.RANKING]
    (by,) = {trial.proposal.samples.numbers for trial in ranking}
    assert by is not None and 1 == len(by) and len(ranking) <= run.candidates
    judged = [t for t in trials if t.proposal.phase is Phase.SPEED and t.proposal.plan]
    assert 0 < len(judged) <= SAFER


def test_the_samples_held_out_judge_what_leaves(model: Path, tmp_path: Path) -> None:
    """What is promised of unseen inputs is of the plan to deploy, by its own trial on them."""
    rng = np.random.default_rng(8)
    more = [{"x": rng.normal(0, 2, (16, 64)).astype(np.float32)} for _ in range(2)]
    inputs = [*samples(), *more]
    told = find(model, tol=TOLERANCE, inputs=inputs, out=tmp_path, threads=1, holdout=2)
    assert told.deploy is not None and not told.deploys_fewest and told.unseen is not None
    assert ("deploy", 2) == (told.promises_of, told.unseen.judged)
    names = load_model(model).table.names
    judged = [
        [names[i] for i in trial.proposal.plan.indices]
        for trial in read_ledger(tmp_path / LEDGER).trials
        if trial.proposal.samples == SampleSet.HELD_OUT
    ]
    assert list(told.deploy.kept) in judged


def test_what_leaves_with_tf32_is_promised_by_trials_with_it(model: Path, tmp_path: Path) -> None:
    """Those of the search without TF32 tell nothing of files that have it, and --risk is asked."""
    run = find(
        model,
        tol=1e-2,
        inputs=samples(),
        out=tmp_path,
        threads=1,
        keep=["mm0", "mm1"],
        holdout=1,
        risk=0.2,
    )
    assert run.tf32_on and run.unseen is not None and run.unseen.estimate is not None
    assert (1, 0.2) == (run.unseen.judged, run.unseen.estimate.share_under)
    cases = {
        trial.proposal.case
        for trial in read_ledger(tmp_path / LEDGER).trials
        if trial.proposal.samples in (SampleSet.HELD_OUT, SampleSet.POOL)
    }
    assert {"", TF32} == cases
