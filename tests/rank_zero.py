"""A model with inputs and outputs without dimensions: a scale, a count, a peak, its place."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models import parse, save
from precision_bisect.protocols import Sample

BODY = """
(float[1,8] x, float scale, int64 count) => (float[1,8] y, float peak, int64 place)
<float by = {200}, float little = {0.001}, int64[1] flat = {-1}> {
  wide = Mul(scale, by)
  square = Mul(wide, wide)
  root = Sqrt(square)
  back = Div(root, by)
  number = Cast<to = 1>(count)
  more = Add(x, number)
  y = Mul(more, back)
  largest = ReduceMax<keepdims = 0>(y)
  peak = Add(largest, little)
  row = Reshape(y, flat)
  place = ArgMax<axis = 0, keepdims = 0>(row)
}"""
KEPT = ["node_of_square", "node_of_root"]
"""The square of a scale of 2 is 160,000, and its root is what puts that right."""
INPUTS, OUTPUTS = ("x", "scale", "count"), ("y", "peak", "place")


def write_model(folder: Path) -> Path:
    """Write the model and return its path."""
    return save(parse(BODY), folder, "rank_zero.onnx")


def samples(count: int = 4) -> list[Sample]:
    """Return so many samples, all of which need the layers of `KEPT`."""
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.standard_normal((1, 8)).astype(np.float32),
            "scale": np.array(2 + 0.37 * number, np.float32),
            "count": np.array(3 + number),
        }
        for number in range(count)
    ]


def write_samples(folder: Path, given: Sequence[Sample]) -> Path:
    """Write a folder of samples and return its path."""
    folder.mkdir()
    for number, sample in enumerate(given):
        np.savez(folder / f"{number}.npz", **sample)  # type: ignore[arg-type]  # named arrays
    return folder
