"""Rows that an operator chooses: which one, how its choice differs, and what judges it instead."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import precision_bisect
from models import parse, save, with_weights
from precision_bisect.explaining.diagnosis.findings import Findings, read_diagnosis
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect_reports.summary import final_screen
from reported_models import Reported, detector, experts, raw_head


def branching(*chooses: str) -> Reported:
    """The same boxes, which a branch of an If takes; what else `chooses` stands there, too."""
    proto, feeds = detector()
    graph = proto.graph
    within = (*chooses, "row", "plain", "pick")
    taken = [node for node in graph.node if node.name in within]
    left = [node for node in graph.node if node.name in ("line", "class", "score", "column")]
    rows = onnx.helper.make_tensor_value_info("m", onnx.TensorProto.FLOAT, ["n", 4])
    none = onnx.helper.make_node(
        "Constant", [], ["none"], value=onnx.numpy_helper.from_array(np.zeros((0, 4), "f4"))
    )
    empty = onnx.helper.make_tensor_value_info("none", onnx.TensorProto.FLOAT, [0, 4])
    branch = onnx.helper.make_node(
        "If",
        ["any"],
        ["boxes"],
        name="branch",
        then_branch=onnx.helper.make_graph(taken, "then", [], [rows]),
        else_branch=onnx.helper.make_graph([none], "else", [], [empty]),
    )
    gone = {*within, *(node.name for node in left), "join"}
    nodes = [node for node in graph.node if node.name not in gone]
    condition = onnx.numpy_helper.from_array(np.array(True), "any")
    graph.initializer.append(condition)
    del graph.node[:], graph.output[:]
    graph.node.extend([*nodes, branch])
    graph.output.append(
        onnx.helper.make_tensor_value_info("boxes", onnx.TensorProto.FLOAT, ["n", 4])
    )
    return proto, feeds


def keypoints() -> Reported:
    """The features of the points with the highest scores; none of them is a class."""
    rng = np.random.default_rng(11)
    model = parse(
        """(float[400,8] x) => (float[20,6] y) <int64[1] k = {20}, int64[1] last = {-1}> {
        [score] s = MatMul(x, w) [sigmoid] p = Sigmoid(s) [flat] f = Squeeze(p, last)
        [best] v, i = TopK(f, k) [features] d = MatMul(x, u) [take] y = Gather(d, i) }"""
    )
    weights = {
        "w": rng.normal(0, 0.02, (8, 1)).astype(np.float32),
        "u": rng.normal(0, 0.4, (8, 6)).astype(np.float32),
    }
    return with_weights(model, weights), [
        {"x": rng.normal(0, 1, (400, 8)).astype(np.float32)} for _ in range(3)
    ]


def thresholded() -> Reported:
    """Rows whose score is above a limit, by a comparison and NonZero: how many is close."""
    rng = np.random.default_rng(9)
    model = parse(
        """(float[256,8] x) => (float[n,8] y) <float limit = {0.5}, int64[1] first = {0}> {
        [score] s = MatMul(x, w) [sigmoid] p = Sigmoid(s) [above] b = Greater(p, limit)
        [which] i = NonZero(b) [flat] j = Squeeze(i, first) [double] d = Add(x, x)
        [rows] y = Gather<axis = 0>(d, j) }"""
    )
    # Scores near 0, so that half of them are next to the limit.
    weights = {"w": rng.normal(0, 5e-4, 8).astype(np.float32)}
    return with_weights(model, weights), [
        {"x": rng.normal(0, 1, (256, 8)).astype(np.float32)} for _ in range(3)
    ]


def different() -> Reported:
    """The different values of a grid: those next to a half are rounded to either side."""
    rng = np.random.default_rng(10)
    model = parse(
        """(float[400] x) => (float[n] y) <float size = {60.0}> {
        [scale] s = Mul(x, size) [round] r = Round(s) [unique] y = Unique<sorted = 1>(r) }"""
    )
    return model, [{"x": rng.normal(0, 1, 400).astype(np.float32)} for _ in range(4)]


def run(
    proto: onnx.ModelProto, feeds: Sequence[Sample], folder: Path, **options: Any
) -> tuple[Result, Findings, str]:
    """Search; return the result, the diagnosis and the last screen."""
    path = save(proto, folder)
    result = precision_bisect.find(
        path, inputs=feeds, out=folder / "run", threads=1, **{"tol": 1e-3, **options}
    )
    screen = "\n".join(line.plain for line in final_screen(result, path, 500))
    return result, read_diagnosis(folder / "run"), screen


JUDGED = {"NonMaxSuppression": "Judge by --check boxes"}
"""Boxes in pixels differ by more than the tolerance before they are chosen; a check fits them."""


@pytest.mark.parametrize(
    ("make", "operator", "outputs", "layer"),
    [
        (detector, "NonMaxSuppression", ["found", "kinds"], "suppress"),
        pytest.param(
            lambda: detector(first=True),
            *("NonMaxSuppression", ["found", "kinds"], "suppress"),
            marks=pytest.mark.nightly,
        ),
        (lambda: branching("suppress"), "NonMaxSuppression", ["boxes"], "branch"),
        (branching, "NonMaxSuppression", ["boxes"], "suppress"),
        (experts, "ArgMax", ["y"], "choose"),
        (keypoints, "TopK", ["y"], "best"),
        (thresholded, "NonZero", ["y"], "which"),
        (different, "Unique", ["y"], "unique"),
    ],
    ids=["boxes", "stages", "inside", "outside", "experts", "points", "comparison", "different"],
)
def test_what_chooses_the_rows_is_named(
    make: Callable[[], Reported],
    operator: str,
    outputs: list[str],
    layer: str,
    tmp_path: Path,
) -> None:
    """With how its choice differs; whatever the run came to, builds are not to blame."""
    result, found, screen = run(*make(), tmp_path)
    (seen,) = found.selections
    assert (operator, outputs, layer) == (seen.operator, seen.outputs, seen.layer)
    assert 0 < seen.samples <= seen.of_samples
    assert seen.shape != seen.expected or 0 < seen.differing <= seen.elements
    # Where it ends has digits to judge, behind a comparison, too.
    assert seen.reads
    advice = [each for each in result.advice if each.id == "selection"]
    # What was tried and helps: values to round differ before Unique, too, by far.
    assert [JUDGED.get(operator, f"Judge before {operator}")] * (operator != "Unique") == [
        each.title.partition(":")[0] for each in advice
    ]
    for each in advice:
        assert layer in each.evidence
        assert each.passed and each.tried is not None and each.tried.control is not None
        assert not each.tried.control.holds
    assert "builds differ" not in screen
    if "widened" in result.message or result.status is Status.INFEASIBLE:
        assert f"chosen by {operator} ({layer})" in result.message
    if result.status is Status.INFEASIBLE:
        assert f"chosen by {operator} ({layer})" in screen
        (step,) = [each.title.removeprefix("Judge ") for each in advice] or ["loosen"]
        assert step in screen.partition("Next: ")[2].splitlines()[0]


def test_boxes_are_judged_by_the_check_that_fits_them(tmp_path: Path) -> None:
    """What the advice says of the check is what a search by it finds."""
    proto, feeds = detector()
    result, diagnosis, _ = run(proto, feeds, tmp_path)
    (advice,) = [each for each in result.advice if each.id == "selection"]
    assert "--check boxes:found,kinds --tol 0.05" in advice.title
    assert ["does not judge" in each.text for each in diagnosis.advice] == [False]
    assert advice.passed and advice.tried is not None
    followed, _, _ = run(
        proto, feeds, tmp_path, check="boxes:found,kinds", tol=0.05, overwrite=True
    )
    assert followed.status is Status.NOTHING_TO_KEEP
    assert followed.error == pytest.approx(advice.tried.error, abs=0.01)


@pytest.mark.parametrize("size", [640.0, 1.0], ids=["pixels", "shares"])
def test_a_raw_head_is_judged_by_what_it_detects(size: float, tmp_path: Path) -> None:
    """Boxes and scores in one output; numbers from 0 to 1 alone may be anything."""
    result, _, screen = run(*raw_head(size), tmp_path, tol=1e-4)
    assert result.kept
    found = [each for each in result.advice if each.id == "selection"]
    assert [each.passed for each in found] == [True] * (size > 1)
    assert ("Judge by --check boxes:y --tol 0.05" in screen) == (size > 1)


def test_what_is_chosen_among_nan_is_no_choice(tmp_path: Path) -> None:
    """A mask of minus infinity spoils every score: that is overflow, and the winners are clear."""
    model = parse(
        """(float[4,6] x, float[4,6] m) => (int64[4,1] best) <float low = {-1e9},
        int64[1] k = {1}> {
        [product] a = Mul(m, low) [add] s = Add(x, a) [softmax] p = Softmax(s)
        [choose] v, best = TopK(p, k) }"""
    )
    x = np.array([[1, 5, 2, 3, 4, 0]] * 4, np.float32)
    m = np.eye(4, 6, 2, dtype=np.float32)
    result, found, _ = run(model, [{"x": x, "m": m}], tmp_path)
    assert result.kept
    assert not found.selections


def test_a_choice_that_stays_is_no_matter(tmp_path: Path) -> None:
    """Where the winner wins by far, nothing is said of the operator that finds it."""
    model = parse(
        """(float[2,4] x) => (float[2,4] y, int64[2] best) <float k = {300.0}, float e = {1e-4}> {
        [large] a = Mul(x, k) [square] s = Mul(a, a) [small] y = Mul(s, e)
        best = ArgMax<axis = -1, keepdims = 0>(x) }"""
    )
    feeds: list[Sample] = [{"x": np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)}]
    result, found, _ = run(model, feeds, tmp_path)
    assert result.kept
    assert not found.selections
    assert "selection" not in {each.id for each in result.advice}
