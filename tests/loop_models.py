"""Small models that run in a loop, and the two of the example."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx

from models import parse
from precision_bisect.protocols import Sample

REPO = Path(__file__).parents[1]
MAKER = REPO / "examples/closed_loop/make_models.py"
DENOISE = ("next_latent:latent", "step:step:next")
DECODE = ("logits:ids:argmax", "present.*:past.*", "positions:positions:next")

CHAOS = """(float[64] x) => (float[64] next) <float one = {1}, float r = {3.9}, float k = {1e-3}> {
  rest = Sub(one, x) product = Mul(x, rest) grown = Mul(r, product)
  squashed = Tanh(x) small = Mul(squashed, k) next = Sub(grown, small) }"""
"""The logistic map, beside a harmless term: an error grows by about 1.6 in each step."""
CACHE = """(float[1,2] x, float[1,"past",2] past) => (float[1,2] y, float[1,"total",2] present) {
  new = Unsqueeze(x, axis) present = Concat<axis = 1>(past, new)
  summed = ReduceMean<axes = [1], keepdims = 0>(present) y = Tanh(summed) }"""
"""Each step adds a place to the cache, and gives the mean of all."""


def chaos() -> onnx.ModelProto:
    """Return the model of `CHAOS`."""
    return parse(CHAOS)


def cache() -> onnx.ModelProto:
    """Return the model of `CACHE`."""
    model = parse(CACHE)
    axis = onnx.numpy_helper.from_array(np.array([1], np.int64), "axis")
    model.graph.initializer.append(axis)
    return model


def chaos_samples(count: int = 2) -> list[Sample]:
    """Return values of the map, of shape (64,)."""
    rng = np.random.default_rng(3)
    return [{"x": rng.uniform(0.1, 0.9, 64).astype(np.float32)} for _ in range(count)]


def write_examples(folder: Path) -> None:
    """Write what the example's script writes."""
    spec = importlib.util.spec_from_file_location("make_models", MAKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(folder)
