"""Models whose norm in pieces overflows, and holds as one operator."""

from pathlib import Path

import numpy as np

from models import parse, save, with_weights
from precision_bisect.protocols import Sample

TOLERANCE = 2e-2
NORM = """[mean] m = ReduceMean <axes = [-1], keepdims = 1> (a) [sub] d = Sub(a, m)
  [square] q = Pow(d, two) [variance] v = ReduceMean <axes = [-1], keepdims = 1> (q)
  [eps] w = Add(v, small) [root] r = Sqrt(w) [quotient] n = Div(d, r)
  [scale] s = Mul(n, gamma) [shift] b = Add(s, beta)"""
HEAD = """(float[8, 32] x) => (float[8, 32] y)
  <float two = {2}, float small = {0.001}, float far = {400}, float back = {6.25e-6}> {"""
ALONE = f"{HEAD} [in] a = MatMul(x, w0) {NORM} [out] c = MatMul(b, w1) [end] y = Tanh(c) }}"
BESIDE = f"""{HEAD} [in] a = MatMul(x, w0) {NORM} [out] c = MatMul(b, w1)
  [up] e = Mul(c, far) [twice] f = Mul(e, e) [down] g = Mul(f, back) [end] y = Tanh(g) }}"""
"""Squares that overflow outside of the norm, too."""


def saved(text: str, folder: Path) -> Path:
    """Save a model whose norm gets values of some thousands, so that its squares overflow."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(0, 0.2, (32, 32)).astype(np.float32) for i in range(2)}
    weights["w0"] *= 2000
    weights |= {"gamma": np.ones(32, np.float32), "beta": np.zeros(32, np.float32)}
    return save(with_weights(parse(text), weights), folder)


def samples() -> list[Sample]:
    """Return four samples."""
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(0, 1, (8, 32)).astype(np.float32)} for _ in range(4)]
