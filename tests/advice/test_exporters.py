"""Norms as exporters write them: an epsilon and a square are found behind what stands between."""

from pathlib import Path

import numpy as np
import pytest

import precision_bisect
from advice_cases import searched
from models import parse, save, with_weights
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.endings import Status
from precision_bisect_reports.summary import FILE_ROUNDS, final_screen
from reported_models import halved

LEGACY = """(float[6,8] x) => (float[6,8] y) {
    n = ReduceL2<axes = [-1], keepdims = 1>(x) k = Constant<value = float {1e-12}>()
    e = Cast<to = 1>(k) c = Clip(n, e) s = Shape(x) w = Expand(c, s) y = Div(x, w) }"""
POWERS = """(float[6,8] x) => (float[6,8] y) <float two = {2}, float half = {0.5},
    int64[1] last = {-1}, float eps = {1e-12}> {
    q = Pow(x, two) v = ReduceSum<keepdims = 1>(q, last) n = Pow(v, half) c = Clip(n, eps)
    s = Shape(x) w = Expand(c, s) y = Div(x, w) }"""
DYNAMO = """(float[6,8] x) => (float[6,8] y) <int64[1] last = {-1}, float eps = {1e-12}> {
    a = Abs(x) n = ReduceL2<keepdims = 1>(a, last) c = Max(n, eps) s = Shape(x)
    w = Expand(c, s) f = Cast<to = 1>(w) y = Div(x, f) }"""
ROOTED = """(float[6,8] x) => (float[6,8] y) <float half = {0.5}, int64[1] last = {-1},
    float eps = {1e-10}> {
    q = Mul(x, x) v = ReduceSum<keepdims = 1>(q, last) e = Add(v, eps) f = Cast<to = 1>(e)
    r = Pow(f, half) s = Shape(x) w = Expand(r, s) y = Div(x, w) }"""


def with_empty_rows(size: float = 1.0) -> list[Sample]:
    """Return two samples in which some rows are padding: 0 throughout."""
    x = np.random.default_rng(1).normal(0, size, (2, 6, 8)).astype(np.float32)
    x[0, 4:] = x[1, 2:] = 0
    return [{"x": x[0]}, {"x": x[1]}]


@pytest.mark.parametrize(
    ("text", "opset"),
    [(LEGACY, 13), (LEGACY, 17), (POWERS, 17), (DYNAMO, 18), (ROOTED, 17)],
    ids=["legacy 13", "legacy 17", "powers", "dynamo", "roots"],
)
def test_an_epsilon_is_found_behind_what_exporters_put_between(
    text: str, opset: int, tmp_path: Path
) -> None:
    """One that FP16 holds leaves nothing to keep, and is what helps first."""
    result, advice = searched(parse(text, opset=opset), with_empty_rows(), tmp_path)
    assert result.kept
    assert "and becomes 0" in advice["epsilon"]["evidence"]
    assert "applied, with 0 of the " in advice["epsilon"]["evidence"]
    assert "which passes" in advice["epsilon"]["evidence"]
    helping = [each.id for each in result.advice if each.passed]
    assert "epsilon" == helping[0]


SUMMED = """(float[6,8] x) => (float[6,8] y) {
    v = ReduceSumSquare<axes = [-1], keepdims = 1>(x) r = Sqrt(v) y = Div(x, r) }"""


@pytest.mark.parametrize("text", [POWERS, ROOTED, SUMMED], ids=["powers", "roots", "sums"])
def test_squares_are_scaled_up_to_a_root_that_is_a_power(text: str, tmp_path: Path) -> None:
    """The factor is taken back behind the root; an epsilon between takes it squared."""
    x = np.random.default_rng(2).normal(0, 200, (2, 6, 8)).astype(np.float32)
    result, advice = searched(parse(text), [{"x": each} for each in x], tmp_path)
    assert result.kept
    assert "applied, with 0 of the " in advice["scale"]["evidence"]
    assert "which passes" in advice["scale"]["evidence"]


def test_fusing_is_not_advised_where_it_is_refused(tmp_path: Path) -> None:
    """Weights that the file holds in FP16 leave its norm in pieces: the export has to change."""
    proto = parse(
        """(float[4,8] x) => (float[4,8] y) <float two = {2}, float eps = {1e-6}> {
        c = Cast<to = 1>(w) a = Mul(x, c) q = Pow(a, two)
        v = ReduceMean<axes = [-1], keepdims = 1>(q) e = Add(v, eps) r = Sqrt(e) y = Div(a, r) }"""
    )
    x = np.random.default_rng(5).normal(0, 300, (2, 4, 8)).astype(np.float32)
    held = with_weights(proto, {"w": np.ones(8, np.float16)})
    result, advice = searched(held, [{"x": each} for each in x], tmp_path)
    assert result.kept
    assert "--fuse-norms" not in advice["whole-rmsnormalization"]["text"]


def test_a_file_that_overflows_by_itself_is_searched_in_fp32(tmp_path: Path) -> None:
    """What becomes inf is named, with the samples, and the FP32 form's layers are counted."""
    result, advice = searched(*halved(), tmp_path)
    assert Status.NOT_PRECISION is result.status
    assert "the file itself computes in FP16 at node_of_h" in result.message
    assert "node_of_h becomes inf in 2 of 3 samples" in result.message
    screen = "\n".join(line.plain for line in final_screen(result, tmp_path / "run.onnx", 200))
    assert FILE_ROUNDS in screen
    assert "Next: search the FP32 model" in screen
    followed, _ = searched(*halved("g = Identity(s)"), tmp_path, "exact")
    assert 0 < len(followed.kept) < followed.candidates
    tried = advice["already-rounded"]["tried"]
    assert [len(followed.kept), followed.candidates] == [tried["kept"], tried["before"]]


def test_a_file_whose_rounding_is_beyond_the_limit_says_where(tmp_path: Path) -> None:
    """Nothing becomes inf, and the file is to blame all the same."""
    proto = parse(
        """(float[64] x) => (float[64] y) {
        e = Exp(x) h = Cast<to = 10>(e) g = Cast<to = 1>(h) y = Neg(g) }"""
    )
    x = np.random.default_rng(4).normal(0, 1, 64).astype(np.float32)
    path = save(proto, tmp_path)
    result = precision_bisect.find(path, inputs=[{"x": x}], out=tmp_path / "run", tol=1e-6)
    assert Status.NOT_PRECISION is result.status
    assert "the file itself computes in FP16 at node_of_h" in result.message
    assert "becomes" not in result.message
