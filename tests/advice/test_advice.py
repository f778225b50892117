"""Each piece of advice: a model that has the problem, and that following it removes the need."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import precision_bisect
from models import OVERFLOW, parse, save
from norm_spellings import GELUS, SOFTMAXES, activation, group_norm, large, layer_norm
from precision_bisect.advice import case as cases
from precision_bisect.advice.advise import advised
from precision_bisect.advice.case import DiagnosedModel
from precision_bisect.advice.exact_constants import clamped, raised
from precision_bisect.advice.scaling import bits_for, folds_of, scaled
from precision_bisect.advice.text import as_text
from precision_bisect.advice.variants import COPIES
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.comparators.choose_comparator import choose_comparator
from precision_bisect.diagnosis.diagnose import Question, diagnose
from precision_bisect.diagnosis.findings import read_diagnosis
from precision_bisect.inputs.reference import reference_outputs
from precision_bisect.model.load import load_model
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.results.result import Result
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Listed
from precision_bisect.typed.rewrite import TypedWriter
from precision_bisect_reports.curve import curve


def searched(
    proto: onnx.ModelProto, feeds: list[Any], folder: Path, name: str = "run", **options: Any
) -> tuple[Result, dict[str, Any]]:
    """Search a model; return the result and its advice by id."""
    folder.mkdir(exist_ok=True)
    path = save(proto, folder, f"{name}.onnx")
    result = precision_bisect.find(
        path, inputs=feeds, out=folder / name, threads=1, **{"tol": 1e-2, **options}
    )
    found = json.loads((folder / name / "diagnosis.json").read_text())
    return result, {each["id"]: each for each in found["advice"]}


def case_of(path: Path, feeds: list[Sample], kept: list[str], work: Path) -> DiagnosedModel:
    """Diagnose a model with these layers as the answer."""
    model, pair = load_model(path), Pair(low="fp16", high="fp32")
    question = Question(model=model, pair=pair, kept=kept, samples=feeds, threads=1)
    findings, watched = diagnose(question)
    options = Options(model=path, tol=1e-2)
    return DiagnosedModel(
        model=model,
        pair=pair,
        findings=findings,
        watched=watched,
        samples=feeds,
        calibrating=(),
        reference=reference_outputs(model, feeds),
        comparator=choose_comparator(options, [each.name for each in model.outputs]),
        work=work,
        threads=1,
    )


PIECES = {
    "whole-layernormalization": (layer_norm(), 1000.0, 1e-2),
    "whole-rmsnormalization": (layer_norm(centred=False), 1000.0, 1e-2),
    "whole-groupnormalization": (group_norm(), 1000.0, 1e-2),
    "whole-softmax": (activation(SOFTMAXES["plain"]), 8.0, 1e-2),
    "whole-gelu": (activation(GELUS["mul"]), 3.0, 5.5e-4),
}


@pytest.mark.parametrize(
    ("id_", "text", "scale", "tol"), [(k, *v) for k, v in PIECES.items()], ids=PIECES
)
def test_pieces_are_put_together(
    tmp_path: Path, id_: str, text: str, scale: float, tol: float
) -> None:
    """A norm or activation in pieces is named; fused, nothing of it is kept."""
    result, advice = searched(parse(text), large(scale), tmp_path, tol=tol)
    assert result.kept
    assert id_ in advice
    assert set(advice[id_]["layers"]) <= set(result.kept)
    assert "which passes" in advice[id_]["evidence"]
    followed, _ = searched(parse(text), large(scale), tmp_path, "fused", fuse_norms=True, tol=tol)
    assert [] == followed.kept


def test_an_export_at_a_newer_opset_needs_nothing(tmp_path: Path) -> None:
    """The same norm as an operator, as a newer export writes it, passes with nothing kept."""
    whole = (
        "(float[2,4,6] x) => (float[2,4,6] y) <float[6] scale = {1, 1.1, 1.2, 1.3, 1.4, 1.5}> "
        "{ b = LayerNormalization <axis = -1, epsilon = 0.01> (x, scale, scale) y = Neg(b) }"
    )
    before, advice = searched(parse(layer_norm()), large(), tmp_path)
    after, _ = searched(parse(whole), large(), tmp_path, "whole")
    assert before.kept
    assert "framework's own LayerNormalization" in advice["whole-layernormalization"]["text"]
    assert [] == after.kept


SQUARE = (
    "(float[1,4] x) => (float[1,4] y) <float k = {0.001}, float eps = {0.01}> "
    "{ a = Mul(x, k) q = Mul(x, x) v = ReduceMean <axes = [-1]> (q) r = Sqrt(v) "
    "s = Mul(r, k) y = Add(a, s) }"
)


@pytest.mark.parametrize(
    ("text", "feed"),
    [
        (OVERFLOW, np.array([300.0])),
        (SQUARE, np.array([[300.0, -500.0, 20.0, 700.0]])),
        (layer_norm(), large()[0]["x"]),
    ],
    ids=["factor", "root", "norm"],
)
def test_the_factor_before_a_square_is_right(
    tmp_path: Path, text: str, feed: np.ndarray[Any, np.dtype[Any]]
) -> None:
    """With the factor applied the model computes the same in FP32 and needs nothing kept."""
    feeds: list[Sample] = [{"x": feed.astype(np.float32)}]
    result, advice = searched(parse(text), feeds, tmp_path)
    assert "which passes" in advice["scale"]["evidence"]
    case = case_of(tmp_path / "run.onnx", feeds, list(result.kept), tmp_path)
    folds = folds_of(case)
    bits = bits_for(max(each.largest for each in folds), 65504.0)
    assert f"2^-{bits} before it is squared" in advice["scale"]["text"]
    followed = scaled(case, folds, bits)
    onnx.checker.check_model(followed)
    after, _ = searched(followed, feeds, tmp_path, "scaled")
    assert len(after.kept) < len(result.kept)
    assert [] == after.kept
    (expected,), (found,) = (
        reference_outputs(load_model(tmp_path / f"{name}.onnx"), feeds)
        for name in ("run", "scaled")
    )
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)


@pytest.mark.parametrize(
    ("largest", "bits"), [(65504.0, 1), (131008.0, 1), (131009.0, 2), (1e12, 13)]
)
def test_the_factor_is_the_smallest_power_of_two(largest: float, bits: int) -> None:
    """Scaled squares stay within half of the range, and with one bit less they would not."""
    assert bits == bits_for(largest, 65504.0)
    assert largest * 4.0**-bits <= 65504 / 2


def test_bf16_serves_where_only_range_is_short(tmp_path: Path) -> None:
    """Where range is all that lacks, the kept layers pass in BF16."""
    feeds = [{"x": np.array([300], np.float32)}]
    result, advice = searched(parse(OVERFLOW), feeds, tmp_path)
    assert result.kept
    assert "which passes" in advice["bf16-kept"]["evidence"]
    followed, _ = searched(parse(OVERFLOW), feeds, tmp_path, "high", high="bf16")
    assert "found" == followed.status.value
    assert set(followed.kept) <= set(result.kept)
    everywhere, _ = searched(parse(OVERFLOW), feeds, tmp_path, "low", low="bf16")
    assert [] == everywhere.kept
    assert "bf16-everywhere" in advice


@pytest.mark.parametrize("unseen", [[301.0, 303.0, 258.0], []])
def test_advice_is_judged_like_an_answer(tmp_path: Path, unseen: list[float]) -> None:
    """BF16 serves for 256, which it holds, and not for 301, be it given or a copy."""
    feeds: list[Sample] = [{"x": np.array([each], np.float32)} for each in (256.0, *unseen)]
    result, advice = searched(
        parse(OVERFLOW), feeds, tmp_path, tol=None, rtol=4e-3, holdout=len(unseen)
    )
    assert result.kept
    tried = advice["bf16-kept"]["tried"]
    assert tried["on_samples"] and tried["variants"] == len(unseen) + COPIES
    assert 2 * bool(unseen) <= tried["failed"] > 0
    said = f"passes on your samples, fails on {tried['failed']} of {tried['variants']} variants"
    assert said in advice["bf16-kept"]["evidence"]
    assert {"scale"} == {each.id for each in result.advice if each.passed}
    assert dict(curve(result))["instead"].startswith("Scale before squaring: error ")
    assert "What helps: Scale before squaring" in as_text(read_diagnosis(tmp_path / "run"))


def test_advice_that_holds_says_on_what(tmp_path: Path) -> None:
    """A factor before the square serves on the samples, on those held out, and on copies."""
    feeds: list[Sample] = [
        {"x": np.array([[300.0, -500.0, 20.0, each]], np.float32)} for each in (700.0, 650.0)
    ]
    result, advice = searched(parse(SQUARE), feeds, tmp_path, holdout=1)
    tried = advice["scale"]["tried"]
    assert (True, 1 + COPIES, 0) == (tried["on_samples"], tried["variants"], tried["failed"])
    assert f"which passes, on {1 + COPIES} variants, too" in advice["scale"]["evidence"]
    (first, *_) = [each for each in result.advice if each.passed]
    assert first.tried is not None and first.tried.holds
    assert "What helps" in as_text(read_diagnosis(tmp_path / "run"))


def test_advice_without_float_inputs_is_judged_by_factors(tmp_path: Path) -> None:
    """Where no input is a float, copies change what layers compute, of the changed model, too."""
    text = SQUARE.replace("(float[1,4] x)", "(int64[1,4] i)")
    text = text.replace("{ a", "{ x = Cast <to = 1> (i) a")
    feeds: list[Any] = [{"i": np.array([[300, -500, 20, 700]])}]
    result, advice = searched(parse(text), feeds, tmp_path)
    assert result.kept
    tried = advice["scale"]["tried"]
    assert tried["on_samples"] and COPIES == tried["variants"]


def test_large_models_are_not_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a trial would take too much memory, advice comes without what it would show."""
    monkeypatch.setattr(cases, "LARGEST_TRIED_BYTES", -1)
    _, advice = searched(parse(layer_norm()), large(), tmp_path)
    assert {"whole-layernormalization", "scale"} == advice.keys()
    assert not any("passes" in each["evidence"] for each in advice.values())


def test_bf16_is_not_advised_where_digits_lack(tmp_path: Path) -> None:
    """Cancellation needs digits, of which BF16 has fewer."""
    body = "(float[4] x) => (float[4] y) <float k = {400}> { s = Add(x, k) y = Sub(s, k) }"
    feeds = [{"x": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}]
    result, advice = searched(parse(body), feeds, tmp_path)
    assert result.kept
    assert not advice.keys() & {"bf16-kept", "bf16-everywhere"}


ATTENTION = (
    "(float[1,4] x, float[1,4] m) => (float[1,4] y) <float one = {{1}}, float low = {{{mask}}}> "
    "{{ n = Sub(one, m) a = Mul(n, low) s = Add(x, a) y = Softmax(s) }}"
)
EXPANDED = (
    "(float[1,4] x, float[1,4] m) => (float[1,4] y) <float one = {{1}}, float low = {{{mask}}}, "
    "int64[2] shape = {{1, 4}}> "
    "{{ w = Expand(low, shape) n = Sub(one, m) a = Mul(n, w) s = Add(x, a) y = Softmax(s) }}"
)
MASKED: list[Sample] = [
    {"x": np.array([[1, 2, 3, 4]], np.float32), "m": np.array([[1, 1, 1, 0]], np.float32)}
]


@pytest.mark.parametrize("text", [ATTENTION, EXPANDED], ids=["scalar", "expanded"])
@pytest.mark.parametrize("value", [-1e9, -3.4e38])
def test_masks_are_named_and_a_smaller_one_helps(tmp_path: Path, text: str, value: float) -> None:
    """0 times a mask that became -inf is NaN; with -10000 in its place nothing is kept."""
    result, advice = searched(parse(text.format(mask=value)), MASKED, tmp_path)
    assert result.kept
    assert set(advice["mask"]["layers"]) <= set(result.kept)
    assert f"{value:.3g}" in advice["mask"]["evidence"]
    before = len(result.kept)
    assert f"applied, with 0 of the {before} layers kept: error" in advice["mask"]["evidence"]
    assert "which passes" in advice["mask"]["evidence"]
    case = case_of(tmp_path / "run.onnx", MASKED, list(result.kept), tmp_path)
    followed, _ = searched(clamped(case, ["low"]), MASKED, tmp_path, "smaller")
    assert [] == followed.kept


def test_a_smaller_mask_that_does_not_serve_says_so(tmp_path: Path) -> None:
    """A row that is masked altogether is uniform only with a huge mask: the trial fails."""
    scores = np.array([[1, 2, 30, 4]], np.float32)
    feeds: list[Sample] = [{"x": scores, "m": np.zeros((1, 4), np.float32)}]
    result, advice = searched(parse(ATTENTION.format(mask=-3.4e38)), feeds, tmp_path)
    assert result.kept
    assert "which fails" in advice["mask"]["evidence"]


EPSILON = (
    "(float[2,4] x) => (float[2,4] y) <float eps = {{{eps}}}> "
    "{{ q = Mul(x, x) v = ReduceSum <keepdims = 1> (q) w = Add(v, eps) r = Sqrt(w) "
    "y = Div(x, r) }}"
)


@pytest.mark.parametrize(
    ("values", "least"), [([0.0], "6.1e-05"), ([0.0, 5e-3], "6e-08")], ids=["any", "small"]
)
def test_an_epsilon_that_is_lost_is_named(tmp_path: Path, values: list[float], least: str) -> None:
    """0 over an epsilon that becomes 0 is NaN; with one that FP16 holds nothing is kept.

    Where the values are small themselves only the smallest one gives what was computed.
    """
    feeds: list[Sample] = [{"x": np.diag([0, v]).repeat(2, 1).astype("f4")} for v in values]
    result, advice = searched(parse(EPSILON.format(eps=1e-12)), feeds, tmp_path)
    assert result.kept
    assert "1e-12 and becomes 0" in advice["epsilon"]["evidence"]
    assert f"at least {least}" in advice["epsilon"]["text"]
    assert "applied, with 0 of the " in advice["epsilon"]["evidence"]
    assert "which passes" in advice["epsilon"]["evidence"]
    case = case_of(tmp_path / "run.onnx", feeds, list(result.kept), tmp_path)
    followed, _ = searched(raised(case, ["eps"], float(least)), feeds, tmp_path, "larger")
    assert [] == followed.kept


def test_layers_that_inputs_never_reach_are_named(tmp_path: Path) -> None:
    """A branch that was 0 throughout is named; inputs that reach it make the advice go."""
    body = OVERFLOW.replace(
        "y = Mul(s, k)", "t = Mul(s, k) n = Neg(x) r = Relu(n) u = Mul(r, r) y = Add(t, u)"
    )
    one = [{"x": np.array([v], np.float32)} for v in (300.0, 310.0)]
    proto = parse(body.replace("float[1]", "float[2]"))
    feeds = [{"x": np.repeat(each["x"], 2)} for each in one]
    _, advice = searched(proto, feeds, tmp_path)
    assert {"node_of_r", "node_of_u"} == set(advice["inputs"]["layers"])
    assert "nothing but 0 in all 2 samples" in advice["inputs"]["evidence"]
    both = [*feeds, {"x": np.array([-300.0, 5.0], np.float32)}]
    _, advice = searched(proto, both, tmp_path, "reached")
    assert "inputs" not in advice


CAST = (
    "(float[2] x) => (float[2] y) <float k = {1.0004}> "
    "{ h = Cast <to = 16> (x) g = Cast <to = 1> (h) y = Mul(g, k) }"
)
"""BF16 makes 1 of 1 + 3/1024, which FP16 holds, and FP16 makes 1 of 1.0004."""
QUANTIZED = (
    "(float[2] x) => (float[2] y) <float k = {0.50001}, float one = {1}, int8 zero = {0}> "
    "{ p = Mul(x, k) h = QuantizeLinear(p, one, zero) y = DequantizeLinear(h, one, zero) }"
)
"""FP16 makes one half of 0.50001, which is rounded the other way."""


@pytest.mark.parametrize(
    ("text", "feed", "tol", "without"),
    [
        (CAST, 1 + 3 / 1024, 3e-3, CAST.replace("<to = 16>", "<to = 1>")),
        (
            QUANTIZED,
            1.0,
            1e-2,
            "(float[2] x) => (float[2] y) <float k = {0.50001}> { y = Mul(x, k) }",
        ),
    ],
    ids=["cast", "quantized"],
)
def test_a_graph_that_rounds_already_is_named(
    tmp_path: Path, text: str, feed: float, tol: float, without: str
) -> None:
    """Where the file rounds by itself the advice is to search the model that does not."""
    feeds = [{"x": np.full(2, feed, np.float32)}]
    result, advice = searched(parse(text), feeds, tmp_path, tol=tol, copies=0)
    assert result.kept
    assert set(advice["already-rounded"]["layers"]) <= set(result.kept)
    before = len(result.kept)
    told = advice["already-rounded"]["evidence"]
    assert f"applied, with 0 of the {before} layers kept: error" in told
    assert "which passes" in told
    followed, _ = searched(parse(without), feeds, tmp_path, "exact", tol=tol)
    assert [] == followed.kept


def test_warnings_of_the_builder_find_their_layers(tmp_path: Path) -> None:
    """TensorRT's remarks on norms and weights are linked to the layers that they concern."""
    proto = parse(layer_norm())
    path = save(proto, tmp_path)
    names = [str(name) for name in load_model(path).table.names]
    case = case_of(path, list(large()), ["node_of_q", "node_of_v"], tmp_path)
    notes = [
        "Running layernorm after self-attention with FP16 Reduce or Pow may cause overflow.",
        "weights, 3 affected: Detected subnormal FP16 values.",
        "weights, 4 affected: Detected subnormal FP16 values.",
    ]
    listed = [Listed(note=notes[1], names=("node_of_v + other.weight", "nothing.bias"))]
    found = advised(replace(case, notes=notes, listed=listed))
    warned = {each.id: each for each in found.advice if each.id.startswith("tensorrt")}
    assert ["tensorrt-layernorm", "tensorrt-weights"] == list(warned)
    assert ["node_of_q", "node_of_v"] == list(warned["tensorrt-layernorm"].layers)
    assert ["node_of_v"] == list(warned["tensorrt-weights"].layers)
    assert f"the builder says: {notes[2]}" == warned["tensorrt-weights"].evidence
    assert {"node_of_q", "node_of_v"} < set(names)
    (square,) = [each for each in found.layers if each.layer == "node_of_q"]
    assert "tensorrt-layernorm" in square.advice


def test_a_live_warning_finds_its_layers(rtx: Flavour, tmp_path: Path) -> None:
    """TensorRT-RTX names the nodes of a norm in FP16, and the advice is for those layers."""
    path = save(parse(layer_norm()), tmp_path)
    kept = ["node_of_h", "node_of_q", "node_of_v"]
    case = case_of(path, list(large()), kept, tmp_path)
    writer = TypedWriter(case.model, case.pair)
    settings = EngineSettings(compute_capability="8.6")
    backend = TensorRTBackend(writer, settings, rtx, {"x": [(2, 4, 6)]}, tmp_path / "work")
    with backend.build(Plan.of(())) as engine:
        evidence = engine.evidence()
    found = advised(replace(case, notes=evidence.notes, listed=evidence.listed))
    (warned,) = [each for each in found.advice if each.id == "tensorrt-layernorm"]
    assert ["node_of_q", "node_of_v"] == list(warned.layers)
    assert "Detected layernorm nodes in FP16; Running layernorm" in warned.evidence


def test_a_weight_beyond_the_range_is_named(tmp_path: Path) -> None:
    """Weights that FP16 cannot hold are the cause, and BF16 is tried for them."""
    proto = parse("(float[1,4] x) => (float[1,4] y) { h = MatMul(x, w) y = Tanh(h) }")
    weight = np.eye(4, dtype=np.float32) * 1e5
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    feeds = [{"x": np.full((1, 4), 1e-5, np.float32)}]
    result, advice = searched(proto, feeds, tmp_path)
    assert (
        "weight reaches 1e+05, which exceeds FP16's maximum 65504" in result.diagnosis[0].evidence
    )
    assert "bf16-kept" in advice
