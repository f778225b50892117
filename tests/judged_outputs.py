"""Outputs that ready-made checks judge, and the checks as `--check` makes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import models
from precision_bisect.judging.comparators.choose_comparator import ReadyMade, choose_comparator
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Sample


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Return probabilities along the last axis."""
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True), np.float32)


def corners(count: int, seed: int = 0) -> NDArray[Any]:
    """Return boxes of 10 to 60 pixels in an image of 600."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 540, (count, 2))
    return np.concatenate([low, low + rng.uniform(10, 60, (count, 2))], -1).astype(np.float32)


def rows(count: int, seed: int = 0) -> NDArray[Any]:
    """Return boxes with their scores: (count, 5)."""
    scores = np.random.default_rng(seed).uniform(0.1, 1, (count, 1)).astype(np.float32)
    return np.concatenate([corners(count, seed), scores], -1)


def check(name: str, tol: float = 0.01, outputs: Sequence[str] = ("y",)) -> Comparator:
    """Return the comparator of `--check NAME --tol TOL` for a model with these outputs."""
    return choose_comparator(Options(model=Path("m.onnx"), check=name, tol=tol), outputs)


def fitted(
    name: str, reference: Sequence[Sample], images: Sequence[tuple[int, int]] = ()
) -> ReadyMade:
    """Return the same, for outputs that look like the reference."""
    outputs = tuple(reference[0])
    return ReadyMade(name=name, outputs=outputs, tolerance=0.01).fitted(reference, images)


def error(name: str, got: Any, want: Any) -> float:
    """Return the error of one sample with one output, or several by name."""
    both = [each if isinstance(each, dict) else {"y": each} for each in (got, want)]
    found = check(name, outputs=tuple(both[1])).judge([both[0]], [both[1]]).error
    assert found is not None
    return found


IMAGE = np.random.default_rng(0).random((2, 3, 24, 20)).astype(np.float32)
FITTING: Mapping[str, Sequence[NDArray[Any]]] = {
    "boxes": [rows(20)[None], rows(20, seed=1)[None]],
    "ctc": [softmax(models.normal(2, 12, 9)), softmax(models.normal(2, 12, 9, seed=1))],
    "embeddings": [models.normal(4, 16), models.normal(4, 16, seed=1)],
    "iou": [models.normal(1, 6, 9, 9), models.normal(1, 6, 9, 9, seed=1)],
    "perplexity": [models.normal(1, 8, 30), models.normal(1, 8, 30, seed=1)],
    "ssim": [IMAGE, IMAGE[::-1]],
    "top1": [models.normal(16, 10), models.normal(16, 10, seed=1)],
    "top5": [models.normal(16, 10), models.normal(16, 10, seed=1)],
}
"""Outputs by the check that is made for them."""
