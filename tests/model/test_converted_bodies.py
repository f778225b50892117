"""Models with bodies are taken to the opsets that BF16, INT8 and FP8 need, bodies included."""

from pathlib import Path

import numpy as np
import pytest

from models import load_text, normal
from precision_bisect import find
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.graph import all_graphs, opset
from precision_bisect.graphs.load import at_least_opset
from precision_bisect.graphs.soundness import check_nodes
from precision_bisect.precisions import LowName

BODIES = {
    "If": """(float[4,8] x) => (float[4,8] y) <bool c = {1}> {
        a = Relu(x) y = If(c) <
            then_branch = t () => (float[4,8] p) {
                [mean] q = ReduceMean<axes = [1]>(a) w = Unsqueeze<axes = [0]>(q)
                v = Squeeze<axes = [0]>(w) p = Add(a, v) },
            else_branch = e () => (float[4,8] r) {
                m = ReduceMax<axes = [1]>(a) r = Mul(a, m) }> }""",
    "flattening": """(float[2,3,4] x) => (float[2,3,4] y) <bool c = {1}> {
        y = If(c) <
            then_branch = t () => (float[2,3,4] p) {
                [mean] q = ReduceMean<axes = [1]>(x) s = Softmax(x) p = Add(s, q) },
            else_branch = e () => (float[2,3,4] r) { r = Neg(x) }> }""",
    "Loop": """(float[4,8] x) => (float[4,8] y) <int64 n = {3}, bool c = {1}> {
        y = Loop(n, c, x) <body = b (int64 i, bool k, float[4,8] s) => (bool kk, float[4,8] t) {
            kk = Identity(k) [mean] q = ReduceMean<axes = [1]>(s) t = Add(s, q) }> }""",
    "Scan": """(float[4,8] x) => (float[4,8] y) {
        y = Scan<num_scan_inputs = 1, body = b (float[8] s) => (float[8] t) {
            [mean] q = ReduceMean<axes = [0]>(s) t = Sub(s, q) }>(x) }""",
}


@pytest.mark.parametrize("lowest", [13, 19, 21])
@pytest.mark.parametrize("kind", BODIES)
def test_bodies_are_converted_with_the_model(kind: str, lowest: int, tmp_path: Path) -> None:
    """A body left at the old opset would not open, or mean something else."""
    model = load_text(BODIES[kind], tmp_path, opset=11)
    raised = at_least_opset(model, lowest)
    assert lowest == opset(raised.proto)
    check_nodes(raised.proto)
    names = [node.name for graph in all_graphs(raised.proto.graph) for node in graph.node]
    assert "mean" in names and "" not in names and len(names) == len({*names})
    feed = {"x": normal(*(int(str(size)) for size in model.inputs[0].shape or ()))}
    before, after = (reference_outputs(each, [feed])[0]["y"] for each in (model, raised))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("low", ["bf16", "int8", "fp8"])
def test_a_model_with_branches_is_searched_for_types_of_newer_opsets(
    low: LowName, tmp_path: Path
) -> None:
    """Such models were refused as long as onnx converted no branches."""
    text = """(float[4,8] x, bool c) => (float[4,8] y) <float[8,8] w = {WEIGHTS}> {
        [product] a = MatMul(x, w) y = If(c) <
            then_branch = t () => (float[4,8] p) {
                q = ReduceMean<axes = [1]>(a) p = Add(a, q) },
            else_branch = e () => (float[4,8] r) { r = Neg(a) }> }"""
    weights = ", ".join(map(str, normal(8, 8).ravel()))
    model = load_text(text.replace("WEIGHTS", weights), tmp_path, opset=11)
    samples = [{"x": normal(4, 8, seed=i), "c": np.array(bool(i))} for i in range(2)]
    result = find(model.path, inputs=samples, low=low, tol=0.5, out=tmp_path / "run")
    assert () == tuple(result.kept) and (tmp_path / "run" / "model.mixed.onnx").exists()
