"""The cause of each textbook failure is named, with its evidence."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advice_cases import case_for
from models import CANCELLATION, OVERFLOW, UNDERFLOW, load_text
from precision_bisect.explaining.advice.text import advice_text
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Finding, Findings, Hurt, Sign
from precision_bisect.graphs.load import Model
from precision_bisect.precisions import LowName
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.causes import Cause
from precision_bisect.settings.targets import TargetChoice, TargetName

Figures = dict[str, Any]
ADDED: Figures = {"what": "Add inside", "largest": 80000.0}
CASES: list[tuple[str, list[float], LowName, list[str], Figures]] = [
    (OVERFLOW, [300.0], "fp16", ["overflow", "overflow"], {"what": "output", "largest": 9e4}),
    (UNDERFLOW, [1.0, 2.0, 3.0, 4.0], "fp16", ["underflow", "underflow", "overflow"],
     {"share": 1.0}),
    (CANCELLATION, [0.1, 0.2, 0.3, 0.4], "fp16", ["rounding", "cancellation"], {"digits": 11}),
    ("(float[2] x) => (float[2] y) { y = Exp(x) }", [0.1, 0.2], "bf16", ["rounding"],
     {"digits": 8, "steps": False}),
    (OVERFLOW, [300.0], "bf16", ["rounding", "rounding"], {"digits": 8}),
    ("(float[1] x) => (float[1] y) <float k = {70000}> { y = Div(x, k) }", [70000.0], "fp16",
     ["overflow"], {"what": "input"}),
    ("(float[4] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }", [90.0, -89.0, 3.0, -3.0],
     "fp16", ["cancellation"], {"low": "FP16"}),
]  # fmt: skip


def found_in(
    model: Model,
    feeds: list[Sample],
    low: LowName = "fp16",
    drop_errors: Mapping[str, float] | None = None,
    target: TargetChoice = "auto",
) -> list[Finding]:
    """Diagnose every layer, each as kept."""
    question = Question(
        case=case_for(model, feeds, low=low, target=target),
        kept=model.table.names,
        drop_errors=drop_errors or {},
    )
    return list(diagnose(question)[0].layers)


def figures_of(finding: Finding) -> list[Mapping[str, Any]]:
    """Return the figures of each sign of a finding."""
    return [sign.figures for sign in finding.evidence.signs if isinstance(sign, Sign)]


def shows(finding: Finding, **figures: Any) -> bool:
    """Tell whether one sign of a finding has all these figures."""
    return any(figures.items() <= sign.items() for sign in figures_of(finding))


def test_every_cause_is_explained() -> None:
    """Whoever reads a cause in a result finds in docs/diagnosis.md what shows it."""
    page = Path(__file__).parents[2].joinpath("docs", "diagnosis.md").read_text(encoding="utf-8")
    assert [] == [cause for cause in Cause if cause and f"- `{cause}`: " not in page]


@pytest.mark.parametrize(("body", "x", "low", "causes", "evidence"), CASES)
def test_causes(
    tmp_path: Path, body: str, x: list[float], low: LowName, causes: list[str], evidence: Figures
) -> None:
    """Overflow, underflow, cancellation and rounding are told apart."""
    model = load_text(body, tmp_path)
    feeds: list[Sample] = [{"x": np.array(x, np.float32)}]
    found = found_in(model, feeds, low)
    assert [one.cause for one in found] == causes
    assert any(shows(one, **evidence) for one in found)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("y = Mul(s, two)", "rounding"),
        ("one = Constant<value = float {1}>()  y = Pow(s, one)", "rounding"),
        ("y = Log(s)", "underflow"),
        ("y = Div(two, s)", "underflow"),
        ("n = Neg(s)  a = Abs(n)  y = Sqrt(a)", "underflow"),
        ("half = Constant<value = float {0.5}>()  y = Pow(s, half)", "underflow"),
        ("lo = Constant<value = float {1e-12}>() c = Clip(s, lo) f = Flatten(c) y = Log(f)",
         "underflow"),
    ],
)  # fmt: skip
def test_a_tail_of_tiny_values_is_a_cause_where_they_count(
    body: str, cause: str, tmp_path: Path
) -> None:
    """Where they are divided by, or their logarithm is taken; not beside values of 1,000."""
    text = f"(float[1, 4] x) => (float[1, 4] y) <float two = {{2}}> {{ s = Sigmoid(x) {body} }}"
    feeds: list[Sample] = [{"x": np.array([[-12.0, -11.0, 1.0, 4.0]], np.float32)}]
    assert found_in(load_text(text, tmp_path), feeds)[0].cause == cause


@pytest.mark.parametrize(
    ("shape", "value", "target", "evidence"),
    [
        ((1, 32), 3000.0, "onnxruntime", {"summed": 32, "largest": 96000.0}),
        ((1, 70000), 0.5, "onnxruntime", {"summed": 70000}),
        ((1, 32), 3000.0, "tensorrt", {}),
        ((1, 32), 300.0, "onnxruntime", {}),
    ],
)
def test_a_mean_whose_sum_overflows(
    shape: tuple[int, ...], value: float, target: TargetName, evidence: Figures, tmp_path: Path
) -> None:
    """It is called an overflow where the engine stores the sum, and nowhere else."""
    text = "(float[a, b] x) => (float[a, 1] y) { y = ReduceMean<axes = [-1]>(x) }"
    model = load_text(text, tmp_path)
    feeds: list[Sample] = [{"x": np.full(shape, value, np.float32)}]
    (found,) = found_in(model, feeds, target=target)
    assert ("overflow" if evidence else "rounding") == found.cause
    assert shows(found, **evidence)
    assert (target == "onnxruntime") == (found.figures["largest_sum"] is not None)
    if evidence:
        assert found.figures["error_out"] >= 1.0


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime"])
def test_steps_that_are_rounded_inside_are_told(target: TargetName, tmp_path: Path) -> None:
    """Where the engine stores them, and nowhere else."""
    text = "(float[a, 64] x) => (float[a, 64] y) { y = Elu(x) }"
    feeds: list[Sample] = [{"x": np.full((2, 64), -1.234, np.float32)}]
    (found,) = found_in(load_text(text, tmp_path), feeds, target=target)
    assert found.cause == "rounding"
    assert shows(found, steps=target == "onnxruntime")


@pytest.mark.parametrize(
    ("text", "x", "cause", "evidence", "targets"),
    [
        ("{ y = LogSoftmax(x) }", 20.0, "underflow", {"what": "Softmax inside"}, "tensorrt"),
        ("{ y = Mean(x, x) }", 40000.0, "overflow", ADDED, "tensorrt"),
        ("{ n = Neg(x) y = Sum(x, x, n) }", 40000.0, "overflow", ADDED, "all"),
        ("{ y = Mish(x) }", 3.0, "rounding", {"steps": True}, "all"),
    ],
)
@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime"])
def test_what_is_lost_between_steps_is_the_cause(
    text: str,
    x: float,
    cause: str,
    evidence: Figures,
    targets: str,
    target: TargetName,
    tmp_path: Path,
) -> None:
    """Of an operator that TensorRT's parser takes apart, and ONNX Runtime in some cases."""
    model = load_text(f"(float[2,8] x) => (float[2,8] y) {text}", tmp_path, opset=18)
    array = np.zeros((2, 8), np.float32)
    array[:, 0] = x
    found = found_in(model, [{"x": array}], target=target)[-1]
    stored = targets in ("all", target)
    assert stored == shows(found, **evidence)
    assert found.cause == (cause if stored else "rounding")


def test_a_scatter_stores_every_step(tmp_path: Path) -> None:
    """A sum of many small values is told to be rounded at each."""
    model = load_text(
        """(float[2] x, int64[500] i, float[500] u) => (float[2] y) {
        y = ScatterElements<reduction = "add">(x, i, u) }""",
        tmp_path,
        opset=18,
    )
    feed: Sample = {
        "x": np.ones(2, np.float32),
        "i": np.zeros(500, np.int64),
        "u": np.full(500, 0.3, np.float32),
    }
    (found,) = found_in(model, [feed])
    assert shows(found, steps=True)
    assert found.figures["error_out"] > 1e-3


def test_a_sum_is_that_of_the_sample_with_the_largest_mean(tmp_path: Path) -> None:
    """64 values of 1 and 4 of 3,000 sum up to 12,000 at most, which FP16 holds."""
    text = "(float[a, b] x) => (float[a, 1] y) { y = ReduceMean<axes = [-1]>(x) }"
    model = load_text(text, tmp_path)
    pairs = [((1, 64), 1.0), ((1, 4), 3000.0)]
    feeds: list[Sample] = [{"x": np.full(shape, value, np.float32)} for shape, value in pairs]
    (found,) = found_in(model, feeds, target="onnxruntime")
    assert ("rounding", 12000.0) == (found.cause, found.figures["largest_sum"])


def test_a_model_of_very_many_layers_is_explained_by_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is emulated then, which would take the memory of all layers once more."""
    model = load_text(OVERFLOW, tmp_path)
    feeds: list[Sample] = [{"x": np.array([300.0], np.float32)}]
    monkeypatch.setattr("precision_bisect.explaining.diagnosis.diagnose.MOST_EMULATED", 1)
    monkeypatch.delattr("precision_bisect.explaining.diagnosis.instrument.switch")
    found = found_in(model, feeds)
    assert ["overflow", "overflow"] == [one.cause for one in found]
    assert shows(found[0], largest=9e4)
    assert [None, None] == [one.hurts for one in found]


def test_measured_errors_are_evidence(tmp_path: Path) -> None:
    """The error without the layer is told where it was measured."""
    model = load_text(OVERFLOW, tmp_path)
    name = model.table.names[0]
    feeds: list[Sample] = [{"x": np.array([300], np.float32)}]
    found = found_in(model, feeds, drop_errors={name: 0.25})[0]
    assert name == found.layer
    assert 0.25 == found.figures["drop_error"]
    told = advice_text(Findings(low="fp16", layers=[found]))
    assert "; without it: error 0.25" in " ".join(told.split())
    hurts = Hurt(output="y", error=0.1, path=("a", "b", "c", "d"), errors=(1e-4, 0.05, None, 0.1))
    told = advice_text(Findings(low="fp16", layers=[replace(found, hurts=hurts)]), verbose=True)
    words = " ".join(told.split())
    assert "on the way: 0.0001, at the end 0.1; it grows most at b, from 0.0001 to 0.05" in words


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        (Findings(low="fp16", answered=False), "the run has no answer"),
        (Findings(low="fp16", answered=True), "no layer is kept"),
        (
            Findings(low="fp16", answered=True, unexplained=2),
            "Not explained: the run ended before",
        ),
    ],
)
def test_without_layers_the_reason_is_told(findings: Findings, words: str) -> None:
    """No answer, an answer that keeps nothing, and one that was not looked into are three."""
    assert words in advice_text(findings)


def test_large_weights_overflow(tmp_path: Path) -> None:
    """A weight beyond the low type's range is named as the cause."""
    body = "(float[1] x) => (float[1] y) <float[1] w = {100000}> { y = Mul(x, w) }"
    model = load_text(body, tmp_path)
    feeds: list[Sample] = [{"x": np.array([1e-3], np.float32)}]
    (found,) = found_in(model, feeds)
    assert found.cause == "overflow"
    assert shows(found, what="weight", largest=1e5)


MASKED = """(float[2,16] x, bool[2,16] m) => (float[2,16] y) <float low = {-3.4028e38}> {
    s = Mul(x, x) a = Where(m, s, low) y = Softmax(a) }"""


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime"])
def test_what_reaches_furthest_is_told(target: TargetChoice, tmp_path: Path) -> None:
    """A screen names the furthest layer of several by this figure: the input, or a stored sum."""
    text = "(float[1, 4] x) => (float[1, 1] y) { p = Mul(x, x) y = ReduceMean<axes = [1]>(p) }"
    model = load_text(text, tmp_path, opset=17)
    feeds: list[Sample] = [{"x": np.array([[300, 300, 300, 500]], np.float32)}]
    product, mean = found_in(model, feeds, target=target)
    figures = {"what": "input", "largest": 2.5e5}
    if target == "onnxruntime":
        figures = {"summed": 4, "largest": 5.2e5}
    assert "overflow" == product.cause == mean.cause
    assert shows(product, what="output", largest=2.5e5)
    assert shows(mean, **figures)


@pytest.mark.parametrize(("first", "causes"), [(True, {"rounding"}), (False, {"overflow"})])
def test_a_mask_that_saturates_is_no_overflow(
    first: bool, causes: set[str], tmp_path: Path
) -> None:
    """Minus infinity in its place gives the same softmax; a row of nothing else gives NaN."""
    model = load_text(MASKED, tmp_path)
    keep = np.arange(32).reshape(2, 16) % 3 > 0
    keep[0] &= first
    x = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    found = found_in(model, [{"x": x, "m": keep}])
    assert causes == {one.cause for one in found if one.figures["largest"] > 3e38}
    assert first == any("beyond" in sign for one in found for sign in figures_of(one))


@pytest.mark.parametrize("value", [-1e9, -3.4e38])
def test_what_comes_behind_the_birth_of_nan_is_judged_by_itself(
    value: float, tmp_path: Path
) -> None:
    """0 times -inf is NaN in the product alone; the softmax behind it saturates without harm."""
    model = load_text(
        f"""(float[2,16] x, float[2,16] m) => (float[2,16] y) <float low = {{{value}}}> {{
        [product] a = Mul(m, low) [add] s = Add(x, a) [softmax] y = Softmax(s) }}""",
        tmp_path,
    )
    masked = (np.arange(32).reshape(2, 16) % 3 == 0).astype(np.float32)
    x = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    found = {one.layer: one for one in found_in(model, [{"x": x, "m": masked}])}
    assert "overflow" == found["product"].cause
    assert "overflow" != found["softmax"].cause
    assert "beyond" in figures_of(found["softmax"])[-1]


INDEXED = """(float[4] x, int64[4] i) => (float[4] y, int64[4] j) <float k = {80}> {
    f = Cast<to = 1>(i) q = Div(f, k) a = Floor(q) b = Mul(a, k) y = Sub(f, b)
    j = Cast<to = 7>(a) }"""


@pytest.mark.parametrize(("first", "cause"), [(20011, "indices"), (411, "rounding")])
def test_indices_that_lose_their_last_digits(first: int, cause: str, tmp_path: Path) -> None:
    """Whole numbers between casts, beyond 2048; below that FP16 has each of them."""
    model = load_text(INDEXED, tmp_path)
    feeds: list[Sample] = [
        {"x": np.zeros(4, np.float32), "i": np.arange(first, first + 4, dtype=np.int64)}
    ]
    found = {one.layer: one for one in found_in(model, feeds)}
    quotient = found["node_of_q"]
    assert cause == quotient.cause
    assert (cause == "indices") == shows(quotient, largest=20014, most=2048)


POSITIONS = """(int64 n) => (float[m] y) <float zero = {0}, float one = {1}, float w = {0.01}> {
    f = Cast<to = 1>(n) p = Range(zero, f, one) [turn] q = Mul(p, w) y = Sin(q) }"""
COUNTED = """(int64[1,4] n) => (float[1,4] y) <int64 axis = {1}, float w = {0.01}> {
    f = Cast<to = 1>(n) p = CumSum(f, axis) [turn] q = Mul(p, w) y = Sin(q) }"""
TOTAL = """(int64[2,2] n) => (float[1,1] y) <float w = {0.01}> {
    f = Cast<to = 1>(n) p = ReduceSum(f) [turn] q = Mul(p, w) y = Sin(q) }"""


@pytest.mark.parametrize(
    ("text", "n"),
    [
        (POSITIONS, np.int64(3000)),
        (COUNTED, np.array([[2001, 2, 1002, 2]])),
        (TOTAL, np.array([[2001, 2], [1002, 2]])),
    ],
    ids=["positions", "running counts", "total"],
)
def test_counts_lose_their_last_digits(text: str, n: np.int64, tmp_path: Path) -> None:
    """Whole numbers that are made of integers, and become angles: none is cast again."""
    model = load_text(text, tmp_path)
    found = {one.layer: one for one in found_in(model, [{"n": np.asarray(n)}])}
    assert "indices" == found["turn"].cause


def test_a_model_that_does_not_run_low_has_causes(tmp_path: Path) -> None:
    """An index that lost digits is out of range: the causes are there, and what stops it."""
    model = load_text(
        """(float[n, 2] x, float[4] i) => (float[4, 2] y) <float k = {1.0}> {
        a = Mul(i, k) b = Sub(a, k) j = Cast<to = 7>(b) y = Gather<axis = 0>(x, j) }""",
        tmp_path,
    )
    feeds: list[Sample] = [
        {"x": np.ones((4099, 2), np.float32), "i": np.array([4099, 1, 2, 3], np.float32)}
    ]
    question = Question(case=case_for(model, feeds), kept=model.table.names)
    found = diagnose(question)[0]
    assert {"indices"} == {one.cause for one in found.layers}
    assert "node_of_y" in found.stopped
    told = " ".join(advice_text(found).split())
    assert "With every layer FP16 the model does not run: node_of_y" in told


def test_empty_and_zero_values(tmp_path: Path) -> None:
    """Layers that see nothing, or only zeros, are diagnosed without fail."""
    model = load_text("(float[n] x) => (float[n] y) { y = Sub(x, x) }", tmp_path)
    for values in ([], [0.0]):
        feeds: list[Sample] = [{"x": np.array(values, np.float32)}]
        (found,) = found_in(model, feeds)
        assert found.cause == "rounding"
