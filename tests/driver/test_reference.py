"""The FP32 reference, and the check of what ONNX Runtime's optimizer makes of it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tiny
from models import load_text, normal, parse, save
from precision_bisect.commandline.export_command import export
from precision_bisect.exports.fitting_files import fit
from precision_bisect.exports.rerun import Feeds
from precision_bisect.graphs.fp32_outputs import MOST_DIFFERENT, distances, timed_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import check
from precision_bisect.judging.inputs.reference import Reference, find_reference
from precision_bisect.options import Options
from precision_bisect.pipeline.loading import load_run
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Event, Warned

FOLDED = """
(float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y)
<float[1, 1, 1, 1] w = {%s}, float[1, 1, 1, 1] k = {1e-30}>
{ [conv] c = Conv(x, w) [mul] y = Mul(c, k) }
"""
"""The optimizer makes one convolution of it, by the weight w * k."""
SAMPLE = {"x": np.full((1, 1, 2, 2), 1e30, np.float32)}


def optimised_and_plain(model: Model, sample: Sample) -> tuple[Sample, Sample]:
    """Return the outputs of a session that is optimised, and of one that is not."""
    graph = check(model.proto, model.weights)
    (one,), (other,) = (
        timed_outputs(graph, [sample], 1, optimised=each)[0] for each in (True, False)
    )
    return one, other


def warned(folder: Path, model: Path, sample: Mapping[str, NDArray[np.float32]]) -> list[str]:
    """Return what loading a run on one sample warns of, which is what it will remark upon."""
    events: list[Event] = []
    options = Options(model=model, inputs=[sample], tol=1e-2, threads=1)
    loaded = load_run(options, events.append, folder)
    warnings = [event.message for event in events if isinstance(event, Warned)]
    # What is too small to judge the result tells by itself.
    told = [warning for warning in warnings if "zeros in its place" not in warning]
    assert list(loaded.remarks) == told
    assert loaded.case.optimised is not bool(warnings)
    return warnings


def referred(body: str, folder: Path, sample: Mapping[str, NDArray[np.float32]]) -> Reference:
    """Return the reference of a model written as text, for two samples."""
    return find_reference(load_text(body, folder), [sample, sample], 1)


def test_the_optimizer_is_not_believed(tmp_path: Path) -> None:
    """Where it folds a weight into nothing, the reference is what the nodes compute one by one."""
    reference = referred(FOLDED % "1e-30", tmp_path, SAMPLE)
    assert not reference.optimised
    for outputs in reference.outputs:
        np.testing.assert_allclose(outputs["y"], 1e-30)
    model = load_model(tmp_path / "model.onnx")
    optimised, plain = optimised_and_plain(model, SAMPLE)
    np.testing.assert_array_equal(optimised["y"], 0)
    np.testing.assert_array_equal(reference.outputs[0]["y"], plain["y"])


def test_a_run_says_so(tmp_path: Path) -> None:
    """A run warns in one sentence, which stands in its result, too."""
    model = save(parse(FOLDED % "1e-30"), tmp_path)
    expected = (
        "the FP32 reference is computed without optimisation: ONNX Runtime's optimizer changes "
        "output 'y' of the first sample by 1 of its largest value"
    )
    # The output is far below the tolerance, which is said, too.
    assert expected == warned(tmp_path, model, SAMPLE)[0]


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """Fusions that only round otherwise are left alone, and nothing is said."""
    sample = {"x": normal(1, 1, 2, 2)}
    reference = referred(FOLDED % "1e30", tmp_path, sample)
    assert (reference.optimised, reference.remark) == (True, "")
    assert [] == warned(tmp_path, tiny.write_model(tmp_path / "tiny.onnx"), tiny.samples()[0])


def test_an_overflow_that_the_optimizer_avoids(tmp_path: Path) -> None:
    """A session that leaves FP32's range node by node is no better reference."""
    reference = referred(FOLDED % "1e30", tmp_path, SAMPLE)
    assert (reference.optimised, reference.remark) == (True, "")
    np.testing.assert_allclose(reference.outputs[0]["y"], 1e30)


def test_an_ill_conditioned_model(tmp_path: Path) -> None:
    """Where rounding the input moves the output as much, a difference is no sign of a fault."""
    body = """
    (float[1, 1, 8, 8] x) => (float[1, 1, 8, 8] y)
    <float[1, 1, 1, 1] w = {1.1}, float[1, 1, 1, 1] k = {0.90909091}, float a = {1},
     float b = {2e4}>
    { [conv] c = Conv(x, w) [mul] m = Mul(c, k) [sub] d = Sub(m, a) [far] f = Mul(d, b)
      [exp] y = Exp(f) }
    """
    sample = {"x": 1 + normal(1, 1, 8, 8) * np.float32(1e-4)}
    reference = referred(body, tmp_path, sample)
    model = load_model(tmp_path / "model.onnx")
    optimised, plain = optimised_and_plain(model, sample)
    assert distances(optimised, plain)["y"] > MOST_DIFFERENT
    assert (reference.optimised, reference.remark) == (True, "")


def test_steps_of_int8_make_fp32_differ(tmp_path: Path) -> None:
    """Where the last digit decides between two steps in some sample, that is said, and no more."""
    body = """
    (float[1, 1, 64, 64] x) => (float[1, 1, 64, 64] y)
    <float[1, 1, 1, 1] w = {1.1}, float[1, 1, 1, 1] k = {0.90909091}, float a = {1},
     float b = {2e4}, float s = {0.5}, int8 z = {0}>
    { [conv] c = Conv(x, w) [mul] m = Mul(c, k) [sub] d = Sub(m, a) [far] f = Mul(d, b)
      [q] q = QuantizeLinear(f, s, z) [dq] y = DequantizeLinear(q, s, z) }
    """
    flat = {"x": np.full((1, 1, 64, 64), 1.0001, np.float32)}
    edge = {"x": 1 + normal(1, 1, 64, 64) * np.float32(1e-4)}
    model = save(parse(body), tmp_path)
    for samples, said in (([edge], 1), ([flat], 0)):
        events: list[Event] = []
        loaded = load_run(Options(model=model, inputs=samples, threads=1), events.append, tmp_path)
        remarks = [each for each in loaded.remarks if "FP32 itself differs by " in each]
        assert (said, True) == (len(remarks), loaded.case.optimised)


def test_random_numbers_are_no_difference(tmp_path: Path) -> None:
    """Where no two runs agree, nothing is said of the optimizer."""
    body = "(float[4] x) => (float[4] y) { r = RandomNormalLike(x) y = Add(x, r) }"
    assert referred(body, tmp_path, {"x": normal(4)}).remark == ""


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([0.0], [0.0], 0.0),
        ([1.0, 2.0], [1.0], np.inf),
        ([7, 5, 5, 5], [5, 5, 5, 5], 0.25),
        ([True, False], [True, True], 0.5),
        (3.0, 2.0, 0.5),
        (np.inf, np.inf, 0.0),
    ],
)
def test_how_far_outputs_are_apart(
    one: float | list[float], other: float | list[float], expected: float
) -> None:
    """Floats by the largest value, others by the share that differs; scalars as well."""
    assert distances({"y": np.array(one)}, {"y": np.array(other)}) == {
        "y": pytest.approx(expected)
    }


def test_a_declared_shape_that_is_false_is_not_repeated(tmp_path: Path) -> None:
    """An output that comes in another shape is told, and the written model leaves it open."""
    body = "(float[1,4] x) => (float[1,5] y) { s = Shape(x) a = Tanh(x) y = Reshape(a, s) }"
    options = Options(model=save(parse(body), tmp_path), inputs=[{"x": normal(1, 4)}], tol=1e-2)
    events: list[Event] = []
    loaded = load_run(options, events.append, tmp_path)
    told = "'y' is declared as (1, 5) and comes as (1, 4): exports leave it open"
    assert [told] == [event.message for event in events if isinstance(event, Warned)]
    assert (None, None) == loaded.case.model.outputs[0].shape
    onnx.checker.check_model(loaded.case.model.proto, full_check=True)
    result = tiny.search(options.model, tmp_path / "run", inputs=options.inputs, tol=1e-2)
    assert result.rechecked is not None and "not_judged" == result.rechecked.outcome
    reasons = export(tmp_path / "run", None, None, {}).reasons
    assert not any(str(reason).startswith("Polygraphy") for reason in reasons.values())
    assert {"samples": 1, "unrun": ""} == fit(tmp_path / "run", Feeds(), tmp_path)
