"""Norms as exporters write them: an epsilon and a square are found behind what stands between."""

from pathlib import Path

import numpy as np
import pytest

from advice_cases import helps, searched
from models import parse, with_weights
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.endings import Status
from precision_bisect_reports.summary import final_screen
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
    assert "and becomes 0" in advice["epsilon"].evidence
    assert helps(advice["epsilon"], kept=0)
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
    assert helps(advice["scale"], kept=0)


def test_fusing_is_advised_where_the_file_holds_fp16(tmp_path: Path) -> None:
    """A norm whose weights are FP16 is fused in the FP32 form of the file."""
    proto = parse(
        """(float[4,8] x) => (float[4,8] y) <float two = {2}, float eps = {1e-6}> {
        c = Cast<to = 1>(w) a = Mul(x, c) q = Pow(a, two)
        v = ReduceMean<axes = [-1], keepdims = 1>(q) e = Add(v, eps) r = Sqrt(e) y = Div(a, r) }"""
    )
    x = np.random.default_rng(5).normal(0, 300, (2, 4, 8)).astype(np.float32)
    held = with_weights(proto, {"w": np.ones(8, np.float16)})
    result, advice = searched(held, [{"x": each} for each in x], tmp_path)
    assert result.kept
    assert "--fuse-norms" in advice["whole-rmsnormalization"].text


def test_a_file_that_overflows_by_itself_is_searched_in_fp32(tmp_path: Path) -> None:
    """The Cast that becomes inf is named, with its samples; the answer is the FP32 file's."""
    result, _ = searched(*halved(), tmp_path)
    assert Status.FOUND is result.status
    screen = "\n".join(line.plain for line in final_screen(result, tmp_path / "run.onnx", 200))
    assert "searched    in its FP32 form" in screen
    assert "node_of_h leaves the range in 2 of 3 samples" in screen
    followed, _ = searched(*halved("g = Identity(s)"), tmp_path, "exact")
    assert 0 < len(followed.kept) < followed.candidates
    assert followed.kept == result.kept
