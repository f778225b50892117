"""Runs that name their engine: what an answer is for, and what becomes of it elsewhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models import load_text
from precision_bisect.api import find
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.script import judge_outputs
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.options import Options
from precision_bisect.pipeline.elsewhere import other_targets
from precision_bisect.pipeline.evaluators import reopened
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.other_targets import Stored
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import MIXED_MODEL, RESULT
from precision_bisect.search.budget import Budget
from precision_bisect.settings.targets import TARGETS, Inside, TargetChoice, TargetName
from precision_bisect.trial import SampleSet, Verdict
from precision_bisect_reports.next_steps import judging_steps
from precision_bisect_reports.page_model import page_of
from precision_bisect_reports.promise import predicted

NAFNET = Path(__file__).parents[2] / "examples" / "nafnet"
TOLERANCE = 1e-2
MEAN = """(float[8,512] x) => (float[8,1] y) <float small = {1e-3}> {
  [mean] m = ReduceMean<axes = [-1]>(x) [scaled] s = Mul(m, small) [last] y = Neg(s) }"""
SQUARES = """(float[8,512] x) => (float[8,1] y) <float small = {1e-6}> {
  [square] p = Mul(x, x) [mean] m = ReduceMean<axes = [-1]>(p) [scaled] s = Mul(m, small)
  [last] y = Tanh(s) }"""
PLAIN = "(float[8,512] x) => (float[8,512] y) <float k = {0.1}> { p = Mul(x, x) y = Mul(p, k) }"
RELU6 = """(float[8,512] x) => (float[8,512] y) <float low = {0}, float high = {6}> {
  [product] p = Mul(x, x) [relu6] c = Clip(p, low, high) [last] y = Tanh(c) }"""
LARGE: Sample = {"x": np.full((8, 512), 200, np.float32)}
HUGE: Sample = {"x": np.full((8, 512), 300, np.float32)}


def run(target: TargetChoice, folder: Path, text: str = MEAN, **options: object) -> Result:
    """Search a small model in the emulator."""
    model = load_text(text, folder)
    asked: dict[str, object] = {
        "out": folder / "run",
        "inputs": [LARGE if text == MEAN else HUGE],
        "overwrite": True,
        **options,
    }
    return find(
        model.path,
        tol=TOLERANCE,
        backend="emulated",
        target=target,
        copies=2,
        **asked,  # type: ignore[arg-type]
    )


def judged_on(
    target: TargetName, model: Model, kept: Sequence[str], samples: list[Sample]
) -> Judgement:
    """Return the verdict on a plan as a target computes it, by the limit of the runs here."""
    index = {str(name): i for i, name in enumerate(model.table.names)}
    plan = Plan.of(index[name] for name in kept)
    options = Options(model=model.path, tol=TOLERANCE)
    comparator = choose_comparator(options, [each.name for each in model.outputs], {})
    backend = EmulatedBackend(model, targets=[target])
    outputs = [backend.evaluate(plan, sample) for sample in samples]
    return judge_outputs(comparator, outputs, reference_outputs(model, samples))


def test_an_answer_is_judged_on_other_targets(tmp_path: Path) -> None:
    """Nothing to keep for TensorRT; ONNX Runtime on CUDA stores a sum that is infinite."""
    found = run("tensorrt", tmp_path)
    assert ("nothing_to_keep", "tensorrt") == (found.status, found.target)
    (other,) = found.other_targets
    assert (["onnxruntime"], False, float("inf")) == (other.targets, other.passed, other.error)
    assert [Stored(op_type="ReduceMean", inside=Inside.SUM, layers=1)] == other.stored
    assert {"onnxruntime"} == found.not_passed
    saved = read_result(tmp_path / "run" / RESULT, "")
    assert (found.target, found.other_targets) == (saved.target, saved.other_targets)


@pytest.mark.parametrize("target", ["onnxruntime", "all"])
def test_what_is_searched_for_a_target_passes_there(target: TargetChoice, tmp_path: Path) -> None:
    """The mean is kept where its sum is infinite, and that is all."""
    found = run(target, tmp_path)
    assert ["mean"] == list(found.kept) and found.certificate.minimal
    names = [each.targets for each in found.other_targets]
    assert ([] if target == "all" else [["tensorrt", "tensorrt-rtx"]]) == names
    assert not found.not_passed


def test_what_no_target_computes_otherwise_is_judged_once(tmp_path: Path) -> None:
    """No line, and no evaluation, for a model without such an operator."""
    found = run("tensorrt", tmp_path, PLAIN)
    assert ["found", []] == [found.status, found.other_targets]
    every = run("all", tmp_path, PLAIN)
    assert (found.kept, found.error, found.evaluations) == (
        every.kept,
        every.error,
        every.evaluations,
    )


@pytest.mark.parametrize("opset", [11, 13])
def test_no_kernel_no_promise(opset: int, tmp_path: Path) -> None:
    """Where ONNX Runtime would refuse the file, it is no target to judge on, and that is said."""
    model = load_text(RELU6, tmp_path, opset=opset)
    targets: Sequence[TargetChoice] = ("tensorrt", "all", "onnxruntime")
    for target in targets:
        found = find(
            model.path,
            tol=TOLERANCE,
            backend="emulated",
            target=target,
            inputs=[HUGE],
            copies=2,
            out=tmp_path / target,
        )
        judging, why = judging_steps(found), [each.message for each in found.other_targets]
        pinned = [entry.layer for entry in found.pinned]
        if opset == 13 or target != "tensorrt":
            assert ([] if opset == 13 else ["relu6"], []) == (pinned, why)
            assert "onnxruntime" in judging
        else:
            assert [] == pinned and "onnxruntime" not in judging
            words = "Elsewhere: ONNX Runtime on CUDA cannot run 1 low layer low (no FP16 kernel"
            assert page_of(found).banner.startswith(words)
            assert "ONNX Runtime" not in predicted(found)
        file = tmp_path / target / MIXED_MODEL
        graph = onnx.shape_inference.infer_shapes(onnx.load(file)).graph
        (clip,) = (node for node in graph.node if node.name == "relu6")
        types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
        low = types[clip.output[0]]
        assert (low == onnx.TensorProto.FLOAT16) == ("relu6" not in pinned)
        if low == onnx.TensorProto.FLOAT:
            onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def test_nothing_is_judged_once_the_time_is_up(tmp_path: Path) -> None:
    """That is said, with what the target would store."""
    options = Options(
        model=load_text(MEAN, tmp_path).path, inputs=[LARGE], backend="emulated", target="tensorrt"
    )
    work = tmp_path / "work"
    work.mkdir()
    prepared = prepare(options, ignore, work)
    with reopened(prepared, work / "ledger.sqlite", Budget(max_time_s=0), ignore) as driver:
        kept, low = (
            driver.run(
                driver.to_end(other_targets(prepared, driver.cases, plan, SampleSet.JUDGED))
            )
            for plan in (Plan.all_high(3), Plan.of(()))
        )
        assert not driver.every_trial
    assert [(None, "the time was up")] * 2 == [(each.passed, each.message) for each in kept + low]
    assert [0, 1] == [len(each.stored) for each in kept + low]


def test_the_engines_own_business_is_among_the_remarks(tmp_path: Path) -> None:
    """Once, of a run of the emulator."""
    text = "(float[4,8] x) => (float[4,8] y) { y = LpNormalization(x) }"
    found = run("tensorrt", tmp_path, text, inputs=[{"x": np.ones((4, 8), np.float32)}])
    told = "what engines compute inside 1 LpNormalization was taken as FP32"
    assert [told] == [note for note in found.notes if "engines" in note]


def test_another_target_is_another_run(tmp_path: Path) -> None:
    """It is refused on resuming, by its keyword."""
    run("tensorrt", tmp_path)
    with pytest.raises(PrecisionBisectError, match="target was tensorrt, now all"):
        run("all", tmp_path, overwrite=False, resume=True)
    again = run("tensorrt", tmp_path, overwrite=False, resume=True)
    assert [False] == [each.passed for each in again.other_targets]


def test_a_ladder_is_judged_on_other_targets(tmp_path: Path) -> None:
    """As a whole, by what each rung has found."""
    found = run("tensorrt", tmp_path, SQUARES, ladder=("bf16", "fp16", "fp32"))
    for other in found.other_targets:
        assert ["onnxruntime"] == other.targets and other.passed is not None
    assert len(found.other_targets) == found.status.answers


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime", "all"])
@pytest.mark.nightly
def test_the_example_has_an_answer_for_each_target(target: TargetChoice, tmp_path: Path) -> None:
    """What is found for TensorRT fails on ONNX Runtime on CUDA, by 0.137 on a GPU; and is said."""
    model = load_model(NAFNET / "nafnet.onnx")
    samples = read_samples(NAFNET / "inputs", ["image"])[3:6]
    found = find(
        model.path,
        tol=TOLERANCE,
        inputs=samples,
        backend="emulated",
        target=target,
        objective="fewest",
        copies=2,
        out=tmp_path / "run",
    )
    told = {each: judged_on(each, model, found.kept, samples) for each in TARGETS}
    assert found.status == "found" and found.certificate.minimal
    failing = {each for each, verdict in told.items() if verdict.verdict is Verdict.FAIL}
    assert ({"onnxruntime"} if target == "tensorrt" else set()) == failing
    assert failing == found.not_passed
    if target == "tensorrt":
        assert told["onnxruntime"].error == pytest.approx(0.137, rel=0.01)
