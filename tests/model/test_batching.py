"""A graph for another batch computes it as it does the samples in it, or is refused."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import load_text, normal
from precision_bisect.graphs.batching import CannotBatchError, rebatched, samples_apart, stacked
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.judging.inputs.reference import try_batch

FIXED = """(float[1,4,6] x) => (float[1,6,4] y) <float[1,2,6] token = {TOKEN},
  int64[3] heads = {1, 6, 6}, int64[3] back = {1, 6, -1}, float[6,4] w = {WEIGHTS}> {
  joined = Concat<axis = 1>(token, x)
  [split] h = Reshape(joined, heads)
  t = Transpose<perm = [0, 2, 1]>(h)
  [merge] m = Reshape(t, back)
  y = MatMul(m, w) }"""
"""Reshapes and a joined constant that have the batch of the export written into them."""


def fixed_batch(folder: Path) -> Any:
    """Return the model above."""
    token, weights = (", ".join(map(str, np.arange(n) / 10)) for n in (12, 24))
    return load_text(FIXED.replace("TOKEN", token).replace("WEIGHTS", weights), folder)


def test_a_batch_of_the_export_becomes_another(tmp_path: Path) -> None:
    """Each sample of the batch comes to what it comes to alone."""
    model = fixed_batch(tmp_path)
    samples = [{"x": normal(1, 4, 6, seed=seed)} for seed in range(3)]
    expected = [ReferenceSession(model)(sample) for sample in samples]
    try_batch(model, 5, samples, expected, 1)
    wrong = [expected[1], *expected[1:]]
    with pytest.raises(CannotBatchError, match="depends on its neighbours"):
        try_batch(model, 5, samples, wrong, 1)


def test_an_open_batch_needs_no_other_graph(tmp_path: Path) -> None:
    """The graph is the same object, and the stack is cut to the batch."""
    model = load_text("(float[n,2] x) => (float[n,2] y) { y = Neg(x) }", tmp_path)
    assert rebatched(model.proto, 7) is model.proto
    samples = [{"x": normal(2, 2, seed=seed)} for seed in range(2)]
    assert (3, 2) == stacked(samples, 3)["x"].shape
    try_batch(model, 3, samples, [{"y": -sample["x"]} for sample in samples], 1)


def test_an_input_without_axes_is_of_all_samples(tmp_path: Path) -> None:
    """It stays as it is beside inputs whose batch is fixed."""
    model = load_text("(float[2,3] x, float s) => (float[2,3] y) { y = Mul(x, s) }", tmp_path)
    samples = [{"x": normal(2, 3, seed=1), "s": np.asarray(3, np.float32)}]
    expected = [ReferenceSession(model)(sample) for sample in samples]
    try_batch(model, 4, samples, expected, 1)


@pytest.mark.parametrize(
    ("single", "whole", "why"),
    [
        (
            np.array([[np.inf, 1]], np.float32),
            np.array([[np.inf, 1], [np.inf, 5]], np.float32),
            "its neighbours",
        ),
        (np.array([[7]], np.int64), np.array([[7], [8]], np.int64), "its neighbours"),
        (np.array([[1]], np.float32), np.zeros((0, 1), np.float32), "has the shape"),
        (np.array([[1]], np.float32), np.array([[1]], np.float32), "has the shape"),
    ],
    ids=["infinity", "integers", "no rows", "too few rows"],
)
def test_outputs_of_a_batch_are_those_of_its_samples(single: Any, whole: Any, why: str) -> None:
    """Infinities widen no limit, integers count, and so do rows that are missing."""
    samples_apart([{"y": single}], {"y": np.concatenate([single, single])}, 1, 2)
    with pytest.raises(CannotBatchError, match=why):
        samples_apart([{"y": single}], {"y": whole}, 1, 2)


def test_why_there_is_no_batch_goes_between_processes() -> None:
    """A copy of a process hands it back."""
    error = CannotBatchError("no input has an axis")
    assert str(error) == str(pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize(
    "text, samples, batch, why",
    [
        (
            "(float[1,4] x) => (float[1,4] y) { y = Softmax<axis = 0>(x) }",
            [{"x": np.ones((1, 4), np.float32)}],
            2,
            "depends on its neighbours",
        ),
        (
            "(float[2,4] x) => (float[2,4] y) { y = Neg(x) }",
            [{"x": np.ones((2, 4), np.float32)}],
            3,
            "3 is no multiple of the model's batch, 2",
        ),
        (
            "(float[n,4] x, float[m,4] z) => (float[n,4] y) { y = Gemm<transB = 1>(x, z) }",
            [{"x": np.ones((1, 4), np.float32), "z": np.ones((4, 4), np.float32)}],
            2,
            "'x' and 'z' are 1 and 4 long",
        ),
        (
            "(float[n,m] x) => (float[n,m] y) { y = Neg(x) }",
            [{"x": np.ones((1, size), np.float32)} for size in (4, 5)],
            2,
            "several shapes of input 'x'",
        ),
        ("(float x) => (float y) { y = Neg(x) }", [{"x": 1.0}], 2, "no input has an axis"),
    ],
)
def test_what_makes_no_batch_is_refused(
    text: str, samples: list[dict[str, Any]], batch: int, why: str, tmp_path: Path
) -> None:
    """One line says what stands against it; nothing is timed that is not what was asked for."""
    model = load_text(text, tmp_path)
    arrays = [{name: np.asarray(a, np.float32) for name, a in each.items()} for each in samples]
    expected = [ReferenceSession(model)(sample) for sample in arrays]
    with pytest.raises(CannotBatchError, match=why):
        try_batch(model, batch, arrays, expected, 1)
