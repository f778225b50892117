"""What advice names: masks, epsilons, casts, weights, layers, as a graph or a builder tells."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advice_cases import advice_on, case_of, helps, needs_nothing, searched
from models import OVERFLOW, parse, save
from norm_spellings import large, layer_norm
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.explaining.advice.advise import advised, clamped, raised
from precision_bisect.explaining.advice.diagnosed_model import DiagnosedModel
from precision_bisect.explaining.advice.text import advice_text
from precision_bisect.explaining.diagnosis.findings import read_diagnosis
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.combinators import Batch, Outcomes, feed
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Listed
from reported_models import ATTENTION, MASKED

EXPANDED = (
    "(float[1,4] x, float[1,4] m) => (float[1,4] y) <float one = {{1}}, float low = {{{mask}}}, "
    "int64[2] shape = {{1, 4}}> "
    "{{ w = Expand(low, shape) n = Sub(one, m) a = Mul(n, w) s = Add(x, a) y = Softmax(s) }}"
)
SUBTRACTED = (
    "(float[1,4] x, float[1,4] m) => (float[1,4] y) <float one = {{1}}, float low = {{{mask}}}, "
    "int64[1] last = {{-1}}> {{ n = Sub(m, one) a = Mul(n, low) s = Add(x, a) "
    "t = ReduceMax<axes = [-1], keepdims = 1>(s) d = Sub(s, t) e = Exp(d) "
    "b = ReduceSum<keepdims = 1>(e, last) y = Div(e, b) }}"
)
WHOLE = (
    "(float[1,4] x, float[1,4] m) => (float[1,4,2] y) <float one = {{1}}, float low = {{{mask}}}, "
    "int64[4] by_key = {{1, 1, 1, 4}}, int64[4] rows = {{1, 1, 4, 4}}, "
    "int64[3] split = {{1, 4, 1}}> {{ n = Sub(one, m) a = Mul(n, low) "
    "b = Reshape(a, by_key) c = Expand(b, rows) q = Reshape(x, split) k = Concat<axis = 2>(q, q) "
    "y = Attention<q_num_heads = 1, kv_num_heads = 1>(k, k, k, c) }}"
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, value) for text in (ATTENTION, EXPANDED) for value in (-1e9, -3.4e38)),
        (SUBTRACTED, 1e30),
        (WHOLE, -1e9),
    ],
    ids=["scalar", "scalar min", "expanded", "expanded min", "subtracted, in pieces", "whole"],
)
def test_masks_are_named_and_a_smaller_one_helps(tmp_path: Path, text: str, value: float) -> None:
    """0 times a mask that became -inf is NaN; with -10000 in its place nothing is kept."""
    proto = parse(text.format(mask=value), opset=23 if text == WHOLE else 17)
    result, advice = searched(proto, MASKED, tmp_path)
    assert result.kept
    assert set(advice["mask"].layers) <= set(result.kept)
    assert f"{value:.3g}" in advice["mask"].evidence
    assert helps(advice["mask"], kept=0)
    case = case_of(tmp_path / "run.onnx", MASKED, list(result.kept), tmp_path)
    assert needs_nothing(clamped(case, ["low"]), MASKED, tmp_path)


def test_a_smaller_mask_that_does_not_serve_says_so(tmp_path: Path) -> None:
    """A row that is masked altogether is uniform only with a huge mask: the trial fails."""
    scores = np.array([[1, 2, 30, 4]], np.float32)
    feeds: list[Sample] = [{"x": scores, "m": np.zeros((1, 4), np.float32)}]
    result, advice = searched(parse(ATTENTION.format(mask=-3.4e38)), feeds, tmp_path)
    assert result.kept
    assert not advice["mask"].holds
    told = advice_text(read_diagnosis(tmp_path / "run"))
    assert "Tried, and does not hold: Mask attention" in told
    assert "Replace it" not in told


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
    assert "1e-12 and becomes 0" in advice["epsilon"].evidence
    assert f"at least {least}" in advice["epsilon"].text
    assert helps(advice["epsilon"], kept=0)
    case = case_of(tmp_path / "run.onnx", feeds, list(result.kept), tmp_path)
    assert needs_nothing(raised(case, ["eps"], float(least)), feeds, tmp_path)


def test_layers_that_inputs_never_reach_are_named(tmp_path: Path) -> None:
    """A branch that was 0 throughout is named; inputs that reach it make the advice go."""
    body = OVERFLOW.replace(
        "y = Mul(s, k)", "t = Mul(s, k) n = Neg(x) r = Relu(n) u = Mul(r, r) y = Add(t, u)"
    )
    one = [{"x": np.array([v], np.float32)} for v in (300.0, 310.0)]
    proto = parse(body.replace("float[1]", "float[2]"))
    feeds = [{"x": np.repeat(each["x"], 2)} for each in one]
    _, advice = searched(proto, feeds, tmp_path)
    assert {"node_of_r", "node_of_u"} == set(advice["inputs"].layers)
    assert "nothing but 0 in all 2 samples" in advice["inputs"].evidence
    both = [*feeds, {"x": np.array([-300.0, 5.0], np.float32)}]
    _, advice = searched(proto, both, tmp_path, "reached")
    assert "inputs" not in advice


QUANTIZED = (
    "(float[2] x) => (float[2] y) <float k = {0.50001}, float one = {1}, int8 zero = {0}> "
    "{ p = Mul(x, k) h = QuantizeLinear(p, one, zero) y = DequantizeLinear(h, one, zero) }"
)
"""FP16 makes one half of 0.50001, which is rounded the other way."""


def test_a_graph_that_rounds_already_is_named(tmp_path: Path) -> None:
    """Where the file rounds by itself the advice is to search the model that does not."""
    feeds = [{"x": np.ones(2, np.float32)}]
    result, advice = searched(parse(QUANTIZED), feeds, tmp_path, tol=1e-2, copies=0)
    assert result.kept
    assert set(advice["already-rounded"].layers) <= set(result.kept)
    assert helps(advice["already-rounded"], kept=0)
    without = "(float[2] x) => (float[2] y) <float k = {0.50001}> { y = Mul(x, k) }"
    assert needs_nothing(parse(without), feeds, tmp_path, tol=1e-2)


def test_a_file_whose_rounding_costs_no_layer_is_let_be(tmp_path: Path) -> None:
    """FP16 beside a layer that overflows: the FP32 model would keep it, too."""
    proto = parse(
        "(float[4] x) => (float[4] y) <float half = {0.5}> { h = Cast <to = 10> (x) "
        "g = Cast <to = 1> (h) q = Mul(g, g) r = Sqrt(q) y = Mul(r, half) }"
    )
    feeds = [{"x": np.linspace(200, 600, 4, dtype=np.float32)}]
    result, advice = searched(proto, feeds, tmp_path)
    assert result.kept
    assert "already-rounded" not in advice


def test_the_file_without_its_rounding_is_searched_no_longer_than_the_file(tmp_path: Path) -> None:
    """Nobody waits longer for advice than for the answer; nothing is said of as many layers."""
    proto = parse(
        "(float[4] x) => (float[4] y) <float ten = {10}, int8 zero = {0}, float half = {0.5}> "
        "{ h = QuantizeLinear(x, ten, zero) g = DequantizeLinear(h, ten, zero) q = Mul(g, g) "
        "r = Sqrt(q) y = Mul(r, half) }"
    )
    feeds: list[Sample] = [{"x": np.linspace(200, 600, 4, dtype=np.float32)}]
    result, advice = searched(proto, feeds, tmp_path, tol=1.0)
    assert result.kept
    assert "already-rounded" not in advice
    subject = case_of(tmp_path / "run.onnx", feeds, list(result.kept), tmp_path)
    unbound, bound = (
        [reason for reason in judged(replace(subject, own_trials=most)) if "rounded" in reason]
        for most in (math.inf, 2)
    )
    assert len(unbound) > len(bound) == 1 + 2, "one of the answer, and as many as the run's own"


def judged(subject: DiagnosedModel) -> list[str]:
    """Return the reasons of the trials that advice makes."""
    reasons = list[str]()

    def judge(batch: Batch) -> Outcomes:
        reasons.extend(proposal.reason for proposal in batch)
        return tuple(map(subject.cases, batch))

    feed(advised(subject), judge)
    return reasons


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
    found = advice_on(replace(case, notes=notes, listed=listed))
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
    subject = case_of(path, list(large()), kept, tmp_path)
    writer = TypedWriter(subject.case.model, subject.case.pair)
    settings = EngineSettings(compute_capability="8.6")
    backend = TensorRTBackend(writer, settings, rtx, {"x": [(2, 4, 6)]}, tmp_path / "work")
    with backend.build(Plan.of(())) as engine:
        evidence = engine.evidence()
    found = advice_on(replace(subject, notes=evidence.notes, listed=evidence.listed))
    (warned,) = [each for each in found.advice if each.id == "tensorrt-layernorm"]
    assert ["node_of_q", "node_of_v"] == list(warned.layers)
    assert "Detected layernorm nodes in FP16; Running layernorm" in warned.evidence
