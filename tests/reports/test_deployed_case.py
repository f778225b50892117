"""What a sentence says is of the plan that it speaks of: the answer's, or the one in the files."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import golden_screens
from final_screens import DEPLOYMENT, KEPT, RESULT
from precision_bisect.runs.comparing.changes import Comparison, compare, read_side
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.fused_form import FusedForm
from precision_bisect.runs.results.other_targets import WithTf32
from precision_bisect.runs.results.result import Diagnosis, Result
from precision_bisect.runs.runfolder import RESULT as RESULT_FILE
from precision_bisect_reports.comparison import told_of
from precision_bisect_reports.error_by_time import error_by_time
from precision_bisect_reports.next_steps import next_steps
from precision_bisect_reports.page_model import page_of
from precision_bisect_reports.speed import to_deploy, with_tf32

FORM = FusedForm(
    model="00", operators={"LayerNormalization": 1}, candidates=3, kept=[], error=4e-4
)
PLAN = replace(
    golden_screens.PLAN,
    kept=[],
    error=4e-4,
    time=0.5,
    answer_time=0.8,
    fp32_tf32_time=0.9,
    full_batch_time=0.5,
    fused=True,
)
HOLDS = WithTf32(fp32_passed=True, fp32_error=1e-4, passed=True, error=4e-4)
FUSED = replace(
    RESULT,
    deploy=PLAN,
    fused=FORM,
    tf32=HOLDS,
    tf32_on=True,
    export_point="deploy",
    promises_of="deploy",
    layer_precisions=None,
    layer_precisions_reason="no layer is kept",
    deployment=DEPLOYMENT,
)
FP32 = replace(FUSED, deploy=replace(PLAN, time=1.5))
HEAVY = replace(
    FUSED,
    options={"objective": "smallest"},
    deploy=replace(PLAN, time=0.1, weight_bytes=PLAN.high_weight_bytes),
)


def steps(result: Result) -> list[str]:
    """Return what to do next, with the commands."""
    every = next_steps(result, Path("m.onnx"), ["precision-bisect", "m.onnx"])
    return [shlex.join([step.what, *step.commands]) for step in every]


def test_files_that_keep_nothing_are_asked_nothing_of_kept_layers() -> None:
    """All of the fused form runs low, though the answer for the file keeps layers."""
    told = " ".join(steps(FUSED))
    assert "verify" not in told and "weak)" in told
    few = " ".join(steps(replace(FUSED, export_point="fewest", layer_precisions="a:fp32")))
    assert "verify" in few


def test_layers_that_the_files_do_not_keep_gain_nothing_from_tf32_off() -> None:
    """The count beside `TF32 off` is of what the files keep for its rounding."""
    rounded = [Diagnosis(layer=name, cause=Cause.ROUNDING, evidence="") for name in KEPT]
    off = replace(FUSED, tf32_on=False, diagnosis=rounded)
    assert not any("TF32 off (for" in step for step in steps(off))
    fewest = replace(off, export_point="fewest", promises_of="fewest")
    assert any("TF32 off (for 4 layers)" in step for step in steps(fewest))


@pytest.mark.parametrize(
    ("result", "name", "mark"),
    [
        (FUSED, "the plan to deploy", "to deploy"),
        (FP32, "the fastest mixed plan", "fastest mixed"),
        (HEAVY, "the smallest mixed plan", "smallest mixed"),
    ],
    ids=["mixed", "FP32", "smallest"],
)
def test_the_plan_to_deploy_is_none_where_fp32_is(result: Result, name: str, mark: str) -> None:
    """Words and charts name the mixed plan otherwise there."""
    assert result.fp32_wins is (result is not FUSED)
    assert name in with_tf32(result)
    assert [mark] == [plan.name for plan in error_by_time(result).plans if plan.chosen]
    (exports,) = (row.text for row in page_of(result).rows if row.label == "exports")
    assert exports.startswith(name)
    gain = "smaller" if result is HEAVY else "faster"
    assert (f"which is no {gain} than FP32" in exports) is result.fp32_wins


def test_a_file_that_gains_nothing_may_have_a_form_that_does() -> None:
    """Nobody is told to deploy FP32 then, and the files are those of the form."""
    every = tuple(f"n{i}" for i in range(10))
    rungs = (replace(RESULT.rungs[0], layers=every, count=10), RESULT.rungs[1])
    nothing = replace(FUSED, kept=every, rungs=rungs)
    assert nothing.gains_nothing
    assert "of the file as it stands" in page_of(nothing).sentence
    told = " ".join(steps(nothing))
    assert "deploy the model with every layer" not in told and "build" in told
    alone = replace(nothing, deploy=None, fused=None, export_point=None)
    assert "deploy the model with every layer" in " ".join(steps(alone))


def test_two_runs_that_keep_alike_may_deploy_other_plans(tmp_path: Path) -> None:
    """`compare` has a line of it beside that of the kept layers."""
    cells = []
    for name, result in (("fused", FUSED), ("fp32", FP32), ("none", RESULT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / RESULT_FILE).write_text(result.to_text(), encoding="utf-8")
        cells.append(dict(told_of(read_side(tmp_path / name)))["to deploy"])
    assert ["norms put together, every layer in FP16", "FP32", ""] == cells
    comparison: Comparison = compare(read_side(tmp_path / "fused"), read_side(tmp_path / "fp32"))
    assert comparison.same


def test_fp32_that_may_be_over_is_deployed_with_a_word_of_it() -> None:
    """It is as safe as the plan, which is not: who deploys it learns that as well."""
    unsafe = replace(
        FP32,
        deploy=replace(PLAN, time=1.5, unseen_share=0.5),
        tf32=replace(HOLDS, fp32_unseen=0.2),
    )
    assert unsafe.fp32_wins and "TF32 holds" in to_deploy(unsafe)
    assert "up to 20% of unseen inputs may be over" in to_deploy(unsafe)
    assert "may be over" not in to_deploy(FP32)


def test_a_batch_is_advised_only_where_none_was_given() -> None:
    """The plan is slower than FP32 at the samples' batch, and faster at a large one."""
    slower = replace(FP32, deploy=replace(PLAN, time=1.5, tf32=True))
    assert "as fast by estimate: --time-batch N" in to_deploy(slower)
    given = to_deploy(replace(slower, options={"engine": {"time_batch": 4}}))
    assert "2 times as fast by estimate" in given and "--time-batch" not in given


def test_fp32_without_tf32_is_the_rival_where_it_is_unsafe_with() -> None:
    """A plan in TF32 is held against what is deployed instead, not against what must not be."""
    plan = replace(PLAN, tf32=True, time=1.1, tf32_time=0.6, unseen_share=0.02)
    unsafe = replace(FUSED, deploy=plan, tf32=replace(HOLDS, fp32_unseen=0.5))
    assert 0.6 == plan.fp32_gain(unsafe.tf32) and not unsafe.fp32_wins
    assert 1.1 == plan.fp32_gain(HOLDS) and replace(unsafe, tf32=HOLDS).fp32_wins


def test_fp32_that_engines_time_as_fast_is_deployed_only_where_it_is_the_choice() -> None:
    """Another plan than the one in the files may beat it, or unseen inputs may be over."""
    timed = replace(HOLDS, fp32_ms=1.0, speedup=0.8)
    assert "deploy FP32" in with_tf32(replace(FP32, tf32=timed))
    assert "deploy FP32" not in with_tf32(replace(FUSED, tf32=timed))
    alone = replace(FUSED, deploy=None, fused=None, tf32=timed)
    assert "deploy FP32" in with_tf32(alone)
    unsafe = replace(timed, fp32_unseen=0.5)
    assert "deploy FP32" not in with_tf32(replace(alone, tf32=unsafe))


def test_a_result_s_line_says_what_to_deploy() -> None:
    """Who prints it in Python has no screen beside it."""
    assert ", deploy norms put together, every layer in FP16, in " in str(FUSED)
    assert ", deploy FP32, in " in str(FP32) and "deploy" not in str(RESULT)


def test_the_smallest_plan_is_deployed_however_slow_it_is() -> None:
    """Who cannot hold the model has no use for FP32, whose weights are twice as large."""
    smallest = replace(FP32, options={"objective": "smallest"})
    told = to_deploy(smallest)
    assert FP32.fp32_wins and not smallest.fp32_wins
    assert "MiB of weights" in told and "0.67 to 2 times as fast as FP32" in told
    assert HEAVY.fp32_wins and "weights take no more than" in to_deploy(HEAVY)
    assert "as fast as" not in to_deploy(HEAVY)


def test_what_is_built_is_called_what_the_files_hold() -> None:
    """Where nothing is kept, but the safer plan to deploy keeps some."""
    plan = replace(PLAN, kept=KEPT[:1], time=1.5, fused=False)
    safer = replace(FP32, status=Status.NOTHING_TO_KEEP, kept=(), deploy=plan, fused=None)
    assert "time the mixed plan" in " ".join(steps(safer))
    assert "time the FP16 model" in " ".join(steps(replace(safer, export_point="fewest")))
