"""A run tries the model with its norms put together beside the file, and deploys the better."""

import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import golden_screens
import oracles
from fused_models import ALONE, BESIDE, HEAD, NORM, TOLERANCE, samples, saved
from precision_bisect import PrecisionBisectError, find
from precision_bisect.commandline.export_command import export
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.fused_case import dropped, fewest_on_copies, is_better
from precision_bisect.pipeline.on_target.exchange import read_subject
from precision_bisect.pipeline.reopening import reopen
from precision_bisect.pipeline.risk import ROOM
from precision_bisect.pipeline.stability import one
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import FUSED_MODEL, LEDGER, MIXED_MODEL, TRTEXEC
from precision_bisect.search.combinators import feed
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.targets import FUSED, TF32
from precision_bisect.trial import Outcome, Phase, Proposal, Verdict


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a model that needs nothing kept with its norm put together."""
    return saved(ALONE, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return the result of one run."""
    out = tmp_path_factory.mktemp("run")
    return find(model, tol=TOLERANCE, inputs=samples(), out=out, threads=1)


def test_it_is_deployed_and_the_diagnosis_is_of_the_file(result: Result, model: Path) -> None:
    """Every layer low was judged in the preflight and on copies, as a case of the run."""
    names = {*load_model(model).table.names}
    assert result.kept and names.issuperset(result.kept) and result.certificate.minimal
    form, plan, out = result.fused, result.deploy, result.out
    assert form is not None and plan is not None and out is not None
    assert (["LayerNormalization"], []) == ([*form.operators], form.kept)
    assert plan.fused and not plan.kept and not result.deploys_fewest
    assert plan.error == form.error and form.all_low is not None
    trials = [t for t in read_ledger(out / LEDGER).trials if FUSED in t.proposal.case]
    phases = [(trial.proposal.phase, trial.outcome.verdict) for trial in trials]
    assert [(Phase.PREFLIGHT, Verdict.PASS), (Phase.SPEED, Verdict.PASS)] == phases
    assert {f"{TF32},{FUSED}"} == {trial.proposal.case for trial in trials}
    stability = trials[-1].outcome.evidence.stability
    assert stability is not None and (16, 0) == (stability.copies, stability.failed)


@pytest.mark.parametrize("selects", [False, True])
def test_with_every_layer_low_and_unsafe_it_competes(tmp_path: Path, *, selects: bool) -> None:
    """A step of 0.25 rounds by up to 0.125, so that a limit of 0.2 leaves unseen inputs no room.

    Plans of the form with less error are judged then, as where it has to keep layers; where the
    network selects, too, though no share of unseen inputs is told.
    """
    far = f"{HEAD} [in] a = MatMul(x, w0) {NORM} [out] c = MatMul(b, w1) "
    text = f"{far} [up] e = Add(c, far) [down] y = Sub(e, far) }}"
    if selects:
        text = text.replace(" y)", " y, float[8, 1] z)").replace("<", "<int64[1] k = {1}, ", 1)
        text = text.replace("[in]", "[top] z, i = TopK(x, k) [in]")
    engine = EngineSettings(time_batch=2**16)
    out = tmp_path / "run"
    run = find(saved(text, tmp_path), tol=0.2, inputs=samples(), out=out, threads=1, engine=engine)
    assert run.fused is not None and (run.fused.all_low or math.inf) < 0.2
    plans = [t.proposal.plan for t in read_ledger(out / LEDGER).trials if FUSED in t.proposal.case]
    assert any(plan.kept for plan in plans)
    assert not selects or (run.deploy is not None and run.deploy.unseen_share is None)


def test_fp32_beside_it_is_the_file_as_it_was_given(model: Path, tmp_path: Path) -> None:
    """Nobody deploys the form with every layer high: its error in TF32 tells nothing of FP32."""
    engine = EngineSettings(time_batch=2**16)
    run = find(model, tol=1e-3, inputs=samples(), out=tmp_path, threads=1, engine=engine)
    assert run.deploy is not None and run.deploy.fused and not run.deploy.tf32
    assert run.tf32 is not None and run.tf32.fp32_passed is False
    plans = [
        (trial.proposal.case, len(trial.proposal.plan))
        for trial in read_ledger(tmp_path / LEDGER).trials
    ]
    assert run.fused is not None and (TF32, run.candidates) in plans
    assert (f"{TF32},{FUSED}", run.fused.candidates) not in plans


def test_the_file_that_leaves_is_of_the_fused_form(result: Result, model: Path) -> None:
    """It has the file's inputs and outputs, the norm as one operator, and the file's outputs."""
    assert result.out is not None and result.deployment is not None
    mixed, original = (onnx.load(path) for path in (result.out / MIXED_MODEL, model))
    for side in ("input", "output"):
        assert getattr(original.graph, side) == getattr(mixed.graph, side)
    assert "LayerNormalization" in [node.op_type for node in mixed.graph.node]
    session, fp32 = (
        onnxruntime.InferenceSession(path) for path in (result.out / MIXED_MODEL, model)
    )
    for sample in samples():
        np.testing.assert_allclose(
            session.run(None, sample)[0], fp32.run(None, sample)[0], atol=TOLERANCE
        )
    recheck = result.deployment.recheck
    assert recheck is not None and result.refuted is None and recheck.error is None
    assert f"model=$here/{FUSED_MODEL}" in (result.out / TRTEXEC).read_text()


def test_commands_after_the_run_take_the_model_that_the_plan_is_of(
    result: Result, model: Path
) -> None:
    """`export`, `verify` and `target` read the fused form; other points stay of the file."""
    assert result.out is not None
    finished = reopen(model, result.out, {}).finished
    assert (result.out / FUSED_MODEL, ()) == (finished.model.path, finished.kept)
    before = (result.out / MIXED_MODEL).read_bytes()
    assert result.out == export(model, result.out, None, {}).folder
    assert before == (result.out / MIXED_MODEL).read_bytes()
    fewest = export(model, result.out, None, {}, "fewest").folder
    mixed = onnx.load(fewest / MIXED_MODEL)
    assert "LayerNormalization" not in [node.op_type for node in mixed.graph.node]
    subject = read_subject(result.out, {})
    files = {name: point.model.path for name, point in subject.points.items()}
    assert {"answer": result.out / FUSED_MODEL, "fewest": model}.items() <= files.items()
    assert "all_low" in files


def test_points_of_two_models_are_not_said_by_names_of_one(result: Result) -> None:
    """Weak plans name layers of one file: what is of the other is left out, and said."""
    assert result.out is not None
    subject = read_subject(result.out, {"typing": "weak"})
    assert subject.weak is not None and "fewest" not in subject.weak
    assert "fused form" in subject.left_out["fewest"]


def test_a_fused_form_that_has_changed_is_refused(
    result: Result, model: Path, tmp_path: Path
) -> None:
    """A plan is not written for another model than was judged."""
    assert result.out is not None
    shutil.copytree(result.out, tmp_path / "run")
    shutil.copy(model, tmp_path / "run" / FUSED_MODEL)
    with pytest.raises(PrecisionBisectError, match="is not the model"):
        reopen(model, tmp_path / "run", {})


def test_a_resumed_run_comes_to_the_same(result: Result, model: Path) -> None:
    """Nothing is evaluated again, and the fused form is made as before."""
    assert result.out is not None
    count = len(read_ledger(result.out / LEDGER).trials)
    again = find(model, tol=TOLERANCE, inputs=samples(), out=result.out, threads=1, resume=True)
    assert count == len(read_ledger(result.out / LEDGER).trials)
    assert (result.fused, result.deploy) == (again.fused, again.deploy)


@pytest.mark.parametrize("options", [{"fuse_norms": False}, {"objective": "fewest"}])
def test_one_of_an_earlier_answer_goes(
    options: dict[str, object], result: Result, model: Path, tmp_path: Path
) -> None:
    """A folder holds no file that its own record tells nothing of."""
    assert result.out is not None
    out = shutil.copytree(result.out, tmp_path / "run")
    again = find(
        model,
        tol=TOLERANCE,
        inputs=samples(),
        out=out,
        threads=1,
        resume=True,
        **options,  # type: ignore[arg-type]
    )
    assert again.deploy is None or not again.deploy.fused
    assert not (out / FUSED_MODEL).exists() and (out / MIXED_MODEL).exists()
    assert [*again.kept] == [*reopen(model, out, {}).finished.kept] or again.deploy


@pytest.mark.parametrize("options", [{"fuse_norms": False}, {"objective": "fewest"}])
def test_it_is_not_tried_where_it_is_not_wanted(
    options: dict[str, object], model: Path, tmp_path: Path
) -> None:
    """Neither where it is switched off, nor where nothing is sought to be deployed."""
    run = find(model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, **options)  # type: ignore[arg-type]
    assert run.fused is None and not (tmp_path / FUSED_MODEL).exists()
    assert run.deploy is None or not run.deploy.fused


def test_the_fewest_may_leave_and_the_fused_form_later(model: Path, tmp_path: Path) -> None:
    """Its file is kept with the record, whatever the exports hold."""
    run = find(
        model, tol=TOLERANCE, inputs=samples(), out=tmp_path, threads=1, export_point="fewest"
    )
    assert run.deploy is not None and run.deploy.fused
    mixed = onnx.load(tmp_path / MIXED_MODEL)
    assert "LayerNormalization" not in [node.op_type for node in mixed.graph.node]
    later = export(model, tmp_path, None, {}, "deploy").folder
    mixed = onnx.load(later / MIXED_MODEL)
    assert "LayerNormalization" in [node.op_type for node in mixed.graph.node]


def test_what_overflows_beside_the_norm_stays_kept(tmp_path: Path) -> None:
    """Where every layer low fails, the answer without the pieces is tried, by the same names."""
    path = saved(BESIDE, tmp_path)
    run = find(path, tol=TOLERANCE, inputs=samples(), out=tmp_path / "run", threads=1)
    form, plan = run.fused, run.deploy
    assert form is not None and plan is not None and form.kept
    pieces = {"mean", "sub", "square", "variance", "eps", "root", "quotient", "scale", "shift"}
    assert pieces.intersection(run.kept) and not pieces.intersection(form.kept)
    assert plan.fused and [*plan.kept] == [*form.kept] and {"twice"} <= {*plan.kept}
    mixed = onnx.load(tmp_path / "run" / MIXED_MODEL)
    told = {entry.key: entry.value for entry in mixed.metadata_props}
    assert sorted(plan.kept) == sorted(json.loads(told["precision_bisect.layers"]))
    assert sorted(plan.kept) == sorted(reopen(path, tmp_path / "run", {}).finished.kept)


def test_tf32_stays_on_where_the_fused_form_keeps_no_product(tmp_path: Path) -> None:
    """FP32 in TF32 has no room, so plans are judged without; that of no product feels none."""
    more = "".join(f"[out{i}] c{i + 1} = MatMul(c{i}, w1) " for i in range(9))
    text = ALONE.replace(" c = ", " c0 = ").replace(
        "[end] y = Tanh(c)", f"{more}[end] y = Tanh(c9)"
    )
    path = saved(text, tmp_path)
    roomy = find(path, tol=1.0, inputs=samples(), out=tmp_path / "roomy", threads=1)
    assert roomy.tf32 is not None and roomy.tf32.fp32_error and roomy.tf32.error
    limit = 1.24 * roomy.tf32.fp32_error
    assert roomy.tf32.error < limit
    run = find(path, tol=limit, inputs=samples(), out=tmp_path / "run", threads=1)
    plan, products = run.deploy, {"in", "out", *(f"out{i}" for i in range(9))}
    assert plan is not None and plan.fused and plan.tf32 and not products & {*plan.kept}
    assert run.tf32_on and run.tf32 is not None and run.tf32.error == plan.error
    assert "noTF32" not in (tmp_path / "run" / TRTEXEC).read_text()
    assert reopen(path, tmp_path / "run", {}).finished.options.engine.in_tf32


def test_tf32_is_left_off_where_the_products_that_the_fused_form_keeps_fail_with_it(
    tmp_path: Path,
) -> None:
    """Judged as the form is without TF32 they would pass, and the files would leave it on."""
    more = "".join(f"[in{i}] a{i + 1} = MatMul(a{i}, w1) " for i in range(9))
    text = ALONE.replace(" a = MatMul(x, w0)", f" a0 = MatMul(x, w0) {more}")
    path = saved(text.replace("(a)", "(a9)").replace("(a, m)", "(a9, m)"), tmp_path)
    large = [{"x": 60 * sample["x"]} for sample in samples()]
    run = partial(find, path, inputs=large, threads=1)
    settings = EngineSettings(tf32="off"), EngineSettings(tf32="on")
    off, on = (run(tol=1.0, engine=each, out=tmp_path / each.tf32).deploy for each in settings)
    assert off is not None and off.error and on is not None and on.error
    limit = math.sqrt(off.error * on.error)
    result = run(tol=limit, out=tmp_path / "run")
    plan = result.deploy
    assert plan is not None and plan.fused and "in" in plan.kept and not plan.tf32
    assert result.tf32 is not None and result.tf32.passed is False and not result.tf32_on


def test_what_is_promised_is_of_a_plan_that_keeps_nothing(model: Path, tmp_path: Path) -> None:
    """Samples that chose nothing have judged it, not the layers that the file keeps."""
    rng = np.random.default_rng(5)
    many = [{"x": rng.normal(0, 1, (8, 32)).astype(np.float32)} for _ in range(12)]
    run = find(model, tol=TOLERANCE, inputs=many, out=tmp_path, threads=1)
    assert run.deploy is not None and run.deploy.fused and not run.deploy.kept
    assert run.kept and run.unseen is not None
    assert (4, 0) == (run.unseen.judged, run.unseen.failed)
    assert run.fused is not None and run.fused.all_low is not None


def test_a_norm_stays_high_where_what_it_reads_leaves_the_range(tmp_path: Path) -> None:
    """Without it no plan of the form holds. Its name is none of the file's, and it is exported."""
    path = saved(ALONE, tmp_path)
    large = [{"x": 60 * sample["x"]} for sample in samples()]
    run = find(path, tol=TOLERANCE, inputs=large, out=tmp_path / "run", threads=1)
    form, plan = run.fused, run.deploy
    assert form is not None and plan is not None
    assert (["in", "LayerNormalization"], True) == (form.kept, plan.fused)
    mixed = tmp_path / "run" / MIXED_MODEL
    session, fp32 = (onnxruntime.InferenceSession(file) for file in (mixed, path))
    for sample in large:
        np.testing.assert_allclose(
            session.run(None, sample)[0], fp32.run(None, sample)[0], atol=TOLERANCE
        )
    assert [*plan.kept] == [*reopen(path, tmp_path / "run", {}).finished.kept]


def test_a_plan_is_not_told_of_before_it_was_held_against_the_file_s(tmp_path: Path) -> None:
    """A run that ends between would say that it is no faster; resumed, it deploys it."""
    path = saved(BESIDE, tmp_path)
    run = partial(find, path, tol=TOLERANCE, inputs=samples(), threads=1, out=tmp_path / "run")
    whole = run()
    trials = read_ledger(tmp_path / "run" / LEDGER).trials
    held = [FUSED in t.proposal.case and bool(t.proposal.draw) for t in trials].index(True)
    counted = [t for t in trials[: held + 1] if not t.proposal.forecast]
    cut = run(overwrite=True, max_trials=len(counted))
    assert cut.fused is not None and cut.deploy is not None
    assert (None, False) == (cut.fused.kept, cut.deploy.fused)
    resumed = run(resume=True)
    assert (whole.deploy, whole.fused) == (resumed.deploy, resumed.fused)


@given(errors=st.lists(st.floats(0.05, 0.6), min_size=8, max_size=8), further=st.floats(1.0, 1.6))
def test_where_copies_refuse_the_fewest_a_plan_on_the_way_to_them_is_taken(
    errors: list[float], further: float
) -> None:
    """Else the form would keep all that the file's answer keeps, as 47 layers of a ViT."""

    def answer(batch: tuple[Proposal, ...]) -> tuple[Outcome, ...]:
        low = (
            [error for i, error in enumerate(errors) if i not in proposal.plan.kept]
            for proposal in batch
        )
        copies = [further if proposal.draw else 1.0 for proposal in batch]
        return tuple(
            oracles.outcome(math.hypot(*each) * factor * oracles.TOLERANCE)
            for each, factor in zip(low, copies, strict=True)
        )

    def judge(plan: Plan) -> Search[Outcome]:
        return one(plan, Phase.SPEED, "on copies", draw=1)

    steps = feed(dropped(Plan.all_high(8), errors), answer)
    assert steps == sorted(steps, key=lambda step: -len(step.plan))
    most = ROOM * oracles.TOLERANCE
    best, failed = feed(fewest_on_copies(steps, most, judge), answer)
    assert not any(feed(judge(plan), answer).passed for plan in failed)
    assert best is None or (best[1].passed and best[0] not in failed)
    if any(step.error <= oracles.TOLERANCE / 2 for step in steps):
        assert best is not None


PLAN = replace(golden_screens.PLAN, kept=["a", "b"], time=0.5, answer_time=1.0, tf32_time=0.5)


@given(share=st.floats(0.1, 3), kept=st.integers(0, 4), tf32=st.booleans())
def test_the_faster_is_better_and_of_two_alike_the_one_with_fewer(
    share: float, kept: int, *, tf32: bool
) -> None:
    """A slower plan never takes the place of the file's, however few layers it keeps."""
    time = share * PLAN.time
    fused = replace(PLAN, kept=["n"] * kept, time=time, tf32_time=time, tf32=tf32, fused=True)
    better = is_better(fused, PLAN, "fastest")
    if share < 0.97:
        assert better
    elif share > 1.03:
        assert not better
    elif 0.99 < share < 1.01:
        assert better == (kept < len(PLAN.kept))
    assert not (better and is_better(PLAN, fused, "fastest"))
