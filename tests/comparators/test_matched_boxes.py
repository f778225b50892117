"""Boxes as detectors of all exporters write them, judged by what they detect."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import models
from judged_outputs import corners, error, softmax
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError


def detector(order: Sequence[int], *, move: float = 0.0) -> dict[str, NDArray[Any]]:
    """Return a detector's outputs with its boxes in this order."""
    at, scores = corners(6) + np.float32(move), np.linspace(0.9, 0.4, 6, dtype=np.float32)
    labels = np.array([1, 2, 3, 1, 2, 3])
    return {"labels": labels[order], "scores": scores[order], "boxes": at[order]}


def layouts(found: Mapping[str, NDArray[Any]]) -> Mapping[str, dict[str, NDArray[Any]]]:
    """Return the same boxes as exporters write them."""
    boxes, scores, labels = (found[name] for name in ("boxes", "scores", "labels"))
    parts = boxes, scores[:, None], labels[:, None].astype(np.float32)
    centred = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], -1)
    by_class = scores[:, None] * np.eye(4, dtype=np.float32)[labels]
    first = np.zeros_like(parts[1])
    return {
        "torchvision": dict(found),
        "a batch": {name: array[None] for name, array in found.items()},
        "scores by class": {"b": boxes[None], "s": by_class[None]},
        "centred": {"b": centred[None], "s": by_class[None]},
        "end to end": {"y": np.concatenate(parts, -1)[None]},
        "paddle": {"y": np.concatenate([parts[2], parts[1], boxes], -1)},
        "with the image": {"y": np.concatenate([first, boxes, parts[2], parts[1]], -1)},
        "padded": {
            name: np.concatenate([array, np.zeros((3, *array.shape[1:]), array.dtype)])[None]
            for name, array in found.items()
        },
    }


@pytest.mark.parametrize("softmax_of", [False, True])
def test_logits_of_boxes_are_judged_as_their_scores(softmax_of: bool) -> None:
    """By sigmoid or, where a last class is nothing, by softmax: most boxes find nothing."""
    got, want = models.normal(20, 6), models.normal(20, 6, seed=1)
    for logits in (got, want):
        logits[6:, :5] -= 6
        logits[:, 5] = 0
    boxes = {"b": corners(20)[None]}

    def judged(scores: Callable[[NDArray[Any]], NDArray[Any]]) -> float:
        return error("boxes", *({"s": scores(each)[None], **boxes} for each in (got, want)))

    if softmax_of:
        by_logits, by_scores = judged(lambda x: x), judged(lambda x: softmax(x)[:, :5])
    else:
        by_logits = judged(lambda x: x[:, :5])
        by_scores = judged(lambda x: 1 / (1 + np.exp(-x[:, :5])))
    assert 0.0 < by_scores < 1.0
    assert pytest.approx(by_scores, abs=1e-5) == by_logits


@pytest.mark.parametrize("layout", layouts(detector(range(6))))
def test_boxes_are_found_in_every_layout(layout: str) -> None:
    """Order says nothing; a class or a box that moved does, by the same figure in each layout."""
    want = layouts(detector(range(6)))[layout]
    assert 0.0 == error("boxes", layouts(detector([3, 0, 5, 4, 2, 1]))[layout], want)
    moved = [
        error(
            "boxes", layouts(detector(range(6), move=2.0))[each], layouts(detector(range(6)))[each]
        )
        for each in (layout, "torchvision")
    ]
    assert 0.05 < moved[0]
    assert pytest.approx(moved[1], abs=1e-5) == moved[0]
    relabelled = detector(range(6))
    relabelled["labels"][0] = 2
    assert 0.1 < error("boxes", layouts(relabelled)[layout], want)


def raw_head(*, old: bool, move: float = 0.0, count: int = 20) -> NDArray[np.float32]:
    """Return the six boxes of `detector` in a head that has places for more."""
    centred = layouts(detector(range(6), move=move))["centred"]
    columns = [centred["b"][0], *([np.ones((6, 1))] if old else []), centred["s"][0]]
    rows = np.concatenate(columns, -1).astype(np.float32)
    rows = np.concatenate([rows, np.zeros((count - 6, rows.shape[1]), np.float32)])[None]
    return rows if old else rows.swapaxes(1, 2)


@pytest.mark.parametrize("old", [False, True])
def test_a_raw_head_is_judged_as_its_boxes_are(old: bool) -> None:
    """The figure is that of boxes of their own; another place is another box."""
    want = raw_head(old=old)
    moved = error("boxes", raw_head(old=old, move=2.0), want)
    apart = [layouts(detector(range(6), move=move))["torchvision"] for move in (2.0, 0.0)]
    assert pytest.approx(error("boxes", *apart), abs=1e-5) == moved
    assert 0.0 == error("boxes", want, want)
    assert 1.0 == error("boxes", np.roll(want, 6, axis=1 if old else 2), want)
    assert error("boxes", want[:, 1:], want) == np.inf
    with pytest.raises(UsageError, match="scores outside of 0 to 1"):
        error("boxes", want, want * 2)


def test_labels_and_scores_that_pass_through_are_judged_on_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy moves an input that is an output, too: labels are then no whole numbers any more."""
    monkeypatch.chdir(tmp_path)
    graph = "(float[20,4] x, float[20,2] more) => (float[20,6] dets) "
    graph += "{ boxes = Mul(x, x) dets = Concat<axis=1>(boxes, more) }"
    models.save(models.parse(graph), tmp_path)
    scores, labels = np.linspace(0.2, 1, 20), np.arange(20) % 7 + 80
    more = np.stack([scores, labels], -1, dtype=np.float32)
    Path("inputs").mkdir()
    for seed in range(4):
        np.savez(f"inputs/{seed}.npz", x=np.sqrt(corners(20, seed)), more=more)
    flags = ["--check", "boxes", "--tol", "0.05", "--backend", "emulated"]
    assert 0 == main(["model.onnx", "--inputs", "inputs", *flags])
