"""Figures, births of NaN and Inf, ways to the outputs, and borderline layers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import precision_bisect
from advice_cases import case_for
from models import OVERFLOW, load_text, normal, parse, save
from precision_bisect.explaining.diagnosis import instrument as instruments
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.explaining.diagnosis.holding import Magnitudes
from precision_bisect.explaining.diagnosis.instrument import Emulator, Instrument
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16
from precision_bisect.pipeline.explanation import MOST_BORDERLINE
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample

PAIR = Pair(low="fp16", high="fp32")
TWO_WAYS = (
    "(float[4] x) => (float[4] y, float[4] z) <float big = {300}, float small = {1e-5}> "
    "{ a = Mul(x, big) b = Mul(a, a) c = Mul(b, small) y = Neg(c) d = Tanh(x) z = Neg(d) }"
)
SPREAD = (
    "(float[4] x) => (float[4] y, float[4] z) "
    "{ a = Mul(x, x) b = Neg(a) y = Add(a, b) c = Tanh(x) z = Sigmoid(a) }"
)


def explain(model: Model, *feeds: Sample, kept: list[str] | None = None) -> Findings:
    """Diagnose these layers, or all, as kept."""
    names = list(model.table.names) if kept is None else kept
    question = Question(case=case_for(model, feeds), kept=names)
    return diagnose(question)[0]


def test_the_largest_value_is_found_where_it_is(tmp_path: Path) -> None:
    """The figures say in which sample and at which index the largest magnitude lies."""
    model = load_text("(float[2,3] x) => (float[2,3] y) { y = Mul(x, x) }", tmp_path)
    feeds = [np.ones((2, 3), np.float32) for _ in range(3)]
    feeds[1][1, 2] = -400
    (found,) = explain(model, *({"x": feed} for feed in feeds)).layers
    figures = found.figures
    assert (160000.0, "output", "y", 1, [1, 2]) == tuple(
        figures[key] for key in ("largest", "largest_in", "tensor", "sample", "index")
    )
    assert 65504.0 == figures["limit"]
    assert np.inf == figures["error_out"]


def test_rounding_tells_how_an_error_grows(tmp_path: Path) -> None:
    """A layer that is neither out of range nor cancels says what it makes of rounding errors."""
    model = load_text("(float[64] x) => (float[64] y) { y = Exp(x) }", tmp_path)
    (found,) = explain(model, {"x": normal(64) + 8}).layers
    assert "rounding" == found.cause
    assert found.figures["growth"] == pytest.approx(
        found.figures["error_out"] / found.figures["error_in"]
    )
    assert 4 < found.figures["growth"] < 40
    assert str(found.evidence).endswith(f"becomes {found.figures['error_out']:.2g}")


def test_the_output_that_is_hurt_is_named_with_the_way(tmp_path: Path) -> None:
    """Of two outputs the one is named that the layer reaches, with the nodes on the way."""
    model = load_text(TWO_WAYS, tmp_path)
    square = str(model.table.names[1])
    (found,) = explain(model, {"x": np.ones(4, np.float32)}, kept=[square]).layers
    assert found.hurts is not None
    assert "y" == found.hurts.output
    assert np.inf == found.hurts.error
    assert [str(n) for n in model.table.names[1:4]] == list(found.hurts.path)


def test_values_alone_explain_where_rounding_is_spread(tmp_path: Path) -> None:
    """No layer is run low by itself then: causes are the same, and nothing is said to be hurt."""
    model = load_text(TWO_WAYS, tmp_path)
    names = list(model.table.names)
    feeds = [{"x": np.full(4, 1.0, np.float32)}]
    asked = Question(case=case_for(model, feeds), kept=names)
    each, values = diagnose(asked)[0], diagnose(replace(asked, brief=True))[0]
    assert any(one.hurts for one in each.layers)
    assert not any(one.hurts for one in values.layers)
    overflows = [
        {one.layer for one in found.layers if one.cause == "overflow"} for found in (each, values)
    ]
    assert overflows[0] and overflows[0] == overflows[1]


def test_inf_is_followed_from_its_birth(tmp_path: Path) -> None:
    """Inf is born where it is stored first, and its way to an output is told."""
    model = load_text(SPREAD, tmp_path)
    square, minus, sum_ = (str(name) for name in model.table.names[:3])
    found = explain(model, {"x": np.full(4, 300, np.float32)})
    assert [(square, "inf", [square, sum_], "y")] == [
        (birth.layer, birth.born, birth.path, birth.output) for birth in found.spread
    ]
    assert minus not in found.spread[0].path


def test_nan_is_told_from_inf(tmp_path: Path) -> None:
    """A quotient of two values that flush to 0 gives birth to NaN."""
    body = "(float[2] x) => (float[2] y) <float k = {1e-5}> { a = Mul(x, k) y = Div(a, a) }"
    model = load_text(body, tmp_path)
    found = explain(model, {"x": np.full(2, 1e-4, np.float32)})
    assert [(str(model.table.names[1]), "nan")] == [(b.layer, b.born) for b in found.spread]


def test_what_is_infinite_in_fp32_is_no_overflow(tmp_path: Path) -> None:
    """Minus infinity, as masks have it, is held by the low type and is no figure."""
    body = (
        "(float[4] x) => (float[4] y) <float[4] m = {0, 0, 0, 0}> { a = Add(x, m) y = Softmax(a) }"
    )
    model = load_text(body, tmp_path)
    feed = np.array([1, 2, -np.inf, 0], np.float32)
    found = explain(model, {"x": feed})
    assert ["rounding", "rounding"] == [each.cause for each in found.layers]
    assert () == tuple(found.spread)


def test_the_histogram_counts_every_value(tmp_path: Path) -> None:
    """Counts by exponent add up to the values that are not 0, and lie where they belong."""
    model = load_text("(float[6] x) => (float[6] y) { y = Neg(x) }", tmp_path)
    feed = np.array([0, 1, 1.5, -2, 0.25, 1024], np.float32)
    (found,) = explain(model, {"x": feed}, {"x": feed}).layers
    histogram = found.histogram
    assert histogram is not None
    assert -2 == histogram.lowest_exponent
    expected = [2, 0, 4, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert {"inputs": expected, "outputs": expected, "weights": []} == dict(histogram.counts)


def test_small_values_are_counted_as_flushed_or_subnormal() -> None:
    """What rounds to 0 is flushed; what is below the normal range is small."""
    found = Magnitudes()
    found.add(np.array([1e-9, 1e-5, 1.0, 0.0], np.float32), FP16)
    assert (2, 1, 3, 4) == (found.small, found.flushed, found.nonzero, found.count)


def test_groups_of_tensors_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at one tensor at a time, a model is diagnosed as at one go."""
    model = load_text(TWO_WAYS, tmp_path)
    feeds = [{"x": normal(4, seed=seed)} for seed in range(2)]
    whole = explain(model, *feeds)
    monkeypatch.setattr(instruments, "AT_ONCE_BYTES", 1)
    groups = list(Instrument(model, PAIR, 1).groups(["a", "b"], feeds[0]))
    assert [["a"], ["b"]] == groups
    assert whole == explain(model, *feeds)


def test_the_instrument_shows_what_the_plan_stores(tmp_path: Path) -> None:
    """Low layers store rounded values, kept ones exact ones."""
    model = load_text("(float[8] x) => (float[8] y) { a = Exp(x) y = Neg(a) }", tmp_path)
    instrument = Instrument(model, PAIR, 1)
    feed = {"x": normal(8)}
    exact = np.exp(feed["x"])
    emulator = Emulator(instrument, ["a"])
    low = emulator.run(feed, Plan.of(()))["a"]
    kept = emulator.run(feed, Plan.of([0, 1]))["a"]
    assert np.array_equal(low, FP16.round(low))
    np.testing.assert_allclose(kept, exact, rtol=1e-6)
    assert not np.array_equal(low, kept)


def test_a_run_writes_its_diagnosis(tmp_path: Path) -> None:
    """diagnosis.json has kept and borderline layers, as result.json has the causes."""
    body = OVERFLOW.replace("y = Mul(s, k)", "t = Mul(s, k) u = Neg(t) y = Abs(u)")
    path = save(parse(body), tmp_path)
    feeds: list[Sample] = [{"x": np.array([300], np.float32)}]
    result = precision_bisect.find(path, inputs=feeds, out=tmp_path / "run", threads=1, tol=1e-3)
    found = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    kept = [each for each in found["layers"] if each["kept"]]
    assert list(result.kept) == [each["layer"] for each in kept]
    assert [d.evidence for d in result.diagnosis] == [each["evidence"] for each in kept]
    assert 1 == found["schema"]
    near = [each["layer"] for each in found["layers"] if not each["kept"]]
    assert set(near) <= {"node_of_u", "node_of_y"}
    assert len(near) <= MOST_BORDERLINE
    assert [] != found["spread"]


def test_figures_that_are_not_finite_are_text(tmp_path: Path) -> None:
    """JSON has no infinity, so it is written as text."""
    model = load_text(OVERFLOW, tmp_path)
    found = explain(model, {"x": np.array([300], np.float32)})
    assert '"error_out": "inf"' in found.to_text()
    json.loads(found.to_text(), parse_constant=pytest.fail)


def test_the_way_is_that_of_the_error(tmp_path: Path) -> None:
    """Of two ways the error takes the longer one, since the short one all but loses it."""
    body = (
        "(float[8] x) => (float[8] y) <float k = {1000}, float tiny = {0.0001}> "
        "{ [start] a = Exp(x) [short] b = Mul(a, tiny) [long] c = Mul(a, k) [longer] d = Neg(c) "
        "[sum] e = Add(b, d) [end] y = Abs(e) }"
    )
    (found,) = explain(load_text(body, tmp_path), {"x": normal(8)}, kept=["start"]).layers
    assert found.hurts is not None
    assert ["start", "long", "longer", "sum", "end"] == list(found.hurts.path)
    assert len(found.hurts.path) == len(found.hurts.errors)
    for error in found.hurts.errors:
        assert error == pytest.approx(found.figures["error_out"], rel=1e-3)


def test_errors_on_the_way_are_those_of_the_layer_alone(tmp_path: Path) -> None:
    """Where digits cancel the error of the layer grows, and the figures say by how much."""
    model = load_text(
        "(float[64] x) => (float[64] y) <float k = {400}> "
        "{ [plus] a = Add(x, k) [minus] b = Sub(a, k) [end] y = Neg(b) }",
        tmp_path,
    )
    (found,) = explain(model, {"x": normal(64)}, kept=["plus"]).layers
    assert found.hurts is not None
    first, second, last = (error or 0.0 for error in found.hurts.errors)
    assert second > 100 * first
    assert last == pytest.approx(second)


def test_what_is_not_fp32_has_no_figure_on_the_way(tmp_path: Path) -> None:
    """A way through integers is found all the same."""
    body = (
        "(float[4] x) => (float[4] y) "
        "{ [exp] a = Exp(x) [whole] b = Cast<to = 7>(a) [back] c = Cast<to = 1>(b) "
        "[end] y = Neg(c) }"
    )
    (found,) = explain(load_text(body, tmp_path), {"x": normal(4)}, kept=["exp"]).layers
    assert found.hurts is not None
    assert ["exp", "whole", "back", "end"] == list(found.hurts.path)
    assert found.hurts.errors[1] is None


def test_more_layers_than_are_followed_have_a_shortest_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers after the first ones keep the output that they hurt, without figures."""
    monkeypatch.setattr("precision_bisect.explaining.diagnosis.diagnose.MOST_FOLLOWED", 1)
    model = load_text(OVERFLOW.replace("y = Mul(s, k)", "t = Mul(s, k) y = Neg(t)"), tmp_path)
    first, second, _ = explain(model, {"x": np.array([300], np.float32)}).layers
    assert first.hurts is not None and second.hurts is not None
    assert (3, 0) == (len(first.hurts.errors), len(second.hurts.errors))
    assert list(model.table.names[1:]) == list(second.hurts.path)
