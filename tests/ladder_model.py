"""A model that needs every rung of a ladder: an outlier channel, and a square beyond FP16."""

from pathlib import Path

import numpy as np
import onnx

from models import normal, parse, save, with_weights

OVERFLOWING = ["square", "root"]
OUTLIERS = ["second"]
QUANTIZABLE = ["first", "second", "third"]
BODY = """(float[8,32] x) => (float[8,16] y) <float k = {200}, float l = {0.005}> {
    [first] a = MatMul(x, w1)
    [stretch] s = Mul(a, channels)
    [second] b = MatMul(s, w2)
    [up] c = Mul(b, k)
    [square] d = Mul(c, c)
    [root] e = Sqrt(d)
    [down] f = Mul(e, l)
    [third] y = MatMul(f, w3) }"""


def model() -> onnx.ModelProto:
    """Return the model; one channel of `s` is 400 times as large as the others."""
    channels = np.ones(32, np.float32)
    channels[3] = 400.0
    back = normal(32, 16, seed=2) / np.float32(6)
    back[3] /= 400.0
    weights = {
        "w1": normal(32, 32, seed=1) / np.float32(6),
        "channels": channels,
        "w2": back,
        "w3": normal(16, 16, seed=3) / np.float32(4),
    }
    return with_weights(parse(BODY), weights)


def write(folder: Path) -> Path:
    """Write the model and return its path."""
    return save(model(), folder)


def samples(count: int = 3) -> list[dict[str, np.ndarray]]:
    """Return inputs for it."""
    return [{"x": normal(8, 32, seed=10 + i)} for i in range(count)]
