"""Which operators ONNX Runtime makes one kernel of, as its own optimizer says."""

from pathlib import Path

import numpy as np

from models import parse, save, with_weights
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort_fusions import fused_groups

NORM = """(float[2, 8] x) => (float[2, 8] y, float[2, 8] z)
  <float two = {2}, float eps = {0.00001}> {
  [first] a = MatMul(x, w)
  [mean] m = ReduceMean <axes = [-1], keepdims = 1> (a) [sub] d = Sub(a, m)
  [pow] p = Pow(d, two) [var] v = ReduceMean <axes = [-1], keepdims = 1> (p)
  [add] e = Add(v, eps) [sqrt] s = Sqrt(e) [div] n = Div(d, s)
  [scale] g = Mul(n, gamma) [bias] y = Add(g, beta)
  [other] z = Exp(a)
}"""
PIECES = ("mean", "sub", "pow", "var", "add", "sqrt", "div", "scale", "bias")


def groups_of(folder: Path, body: str) -> list[tuple[str, ...]]:
    """Return the groups of a model of this body."""
    weights = {"w": np.eye(8, dtype=np.float32)}
    weights |= {name: np.linspace(1, 2, 8, dtype=np.float32) for name in ("gamma", "beta")}
    return [*fused_groups(load_model(save(with_weights(parse(body), weights), folder)))]


def test_a_norm_in_pieces_is_one_kernel(tmp_path: Path) -> None:
    """Its pieces are a group; neighbours of it are not."""
    assert [PIECES] == groups_of(tmp_path, NORM)


def test_a_norm_whose_middle_is_read_is_none(tmp_path: Path) -> None:
    """What another output needs stays an operator of its own."""
    assert [] == groups_of(tmp_path, NORM.replace("Exp(a)", "Exp(v)"))
