"""Graphs that an optimizer of ONNX Runtime breaks are opened without it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models import broken_norm, normal, parse, save
from precision_bisect.backends.cuda.opening import FUSIONS, Opener, OpeningError, fusions_behind
from precision_bisect.graphs.ort import CPU


def norm(tmp_path: Path) -> Path:
    """Save a graph that a fusion breaks."""
    return save(broken_norm(), tmp_path)


def opener(tmp_path: Path, timeout_s: float | None = None) -> Opener:
    """Return an opener on the CPU provider."""
    return Opener(providers=[CPU], profiles=tmp_path / "profile", timeout_s=timeout_s)


def test_nothing_is_said_of_a_sound_graph(tmp_path: Path) -> None:
    """A graph that opens at once has no remarks."""
    path = save(parse("(float[1] x) => (float[1] y) { y = Relu(x) }"), tmp_path)
    assert () == opener(tmp_path).open(path).notes


def test_broken_fusion_is_switched_off(tmp_path: Path) -> None:
    """A graph that a fusion breaks opens without it, computes right, and the remark says so."""
    opened = opener(tmp_path).open(norm(tmp_path))
    x = normal(8)
    expected = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    np.testing.assert_allclose(opened.session.run(None, {"x": x})[0], expected, rtol=1e-5)
    assert [
        "ONNX Runtime's optimizer spoiled the graph, so all fusions were switched off: Invalid "
        "model. Node input 'n' is not a graph input, initializer, or output of a previous node."
    ] == list(opened.notes)


def test_fusions_are_known(tmp_path: Path) -> None:
    """The optimizers' names are ONNX Runtime's: without them their operators are not made."""
    body = """(float[2,8] x) => (float[2,8] y) <float r = {1.41421356}, float one = {1},
      float half = {0.5}> { d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a)
      y = Mul(m, half) }"""
    path = save(parse(body), tmp_path)
    made = {}
    for off in ((), FUSIONS["Gelu"]):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(path, options, [CPU], disabled_optimizers=off)
        optimized = onnx.load(tmp_path / "optimized.onnx")
        made[off] = [node.op_type for node in optimized.graph.node]
    assert (["Gelu"], 5) == (made[()], len(made[FUSIONS["Gelu"]]))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            "Type Error: Type parameter (T) of Optype (SkipLayerNormalization) bound to different "
            "types (tensor(float) and tensor(float16) in node (SkipLayerNormalization_token_3).",
            {"SkipLayerNormFusion", "BiasSkipLayerNormFusion"},
        ),
        (
            "Failed to find kernel for BiasGelu(1) (node BiasGelu). Op with name (BiasGelu) and "
            "type (BiasGelu) kernel is not supported in CUDAExecutionProvider.",
            {"BiasGeluFusion"},
        ),
        ("Could not find an implementation for Tan(7) node with name '/Gelu(1)'", set()),
    ],
)
def test_fusions_behind(error: str, expected: set[str]) -> None:
    """The operator that an error is about tells the fusion; a layer's name does not."""
    assert expected == fusions_behind(error)


def test_refused_graph(tmp_path: Path) -> None:
    """A graph that is refused at every level ends with ONNX Runtime's own words, in one line."""
    body = "(bfloat16[4] x) => (bfloat16[4] y) { y = Add(x, x) }"
    with pytest.raises(OpeningError, match=r"^Could not find an implementation for Add\(14\)"):
        opener(tmp_path).open(save(parse(body), tmp_path))


def test_too_slow(tmp_path: Path) -> None:
    """An opening that outlasts its limit is broken off."""
    body = "(float[1] x) => (float[1] y) { y = Relu(x) }"
    with pytest.raises(TimeoutError, match="not built within 0 s"):
        opener(tmp_path, timeout_s=0.0).open(save(parse(body), tmp_path))
