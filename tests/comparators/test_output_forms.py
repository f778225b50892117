"""What a check takes an output for: the axis of its classes, shares or logits, read once."""

import numpy as np
import pytest

import models
from judged_outputs import FITTING, corners, fitted, softmax
from precision_bisect.errors import UsageError


@pytest.mark.parametrize(
    ("shape", "image", "axis"),
    [
        ((1, 21, 30, 30), None, 1),
        ((1, 30, 30, 21), None, 3),
        ((1, 21, 48, 64), None, 1),
        ((1, 48, 64, 21), None, 3),
        ((1, 21, 24, 32), None, None),
        # More classes than pixels along a side.
        ((1, 16, 20, 150), None, 3),
        ((1, 150, 16, 20), None, 1),
        # The sides are those of the sample's image, or the second axis is as likely.
        ((1, 15, 10, 12), (40, 48), 1),
        ((1, 10, 12, 15), (40, 48), 3),
        ((1, 9, 9, 9), None, None),
        ((1, 15, 12, 18), None, None),
        # A recognizer's characters before or behind the places of its line.
        ((1, 37, 1, 80), None, None),
        ((1, 37, 1, 80), (48, 320), None),
        ((1, 15, 1, 10), (32, 320), 1),
    ],
)
def test_classes_of_pixels_are_found(
    shape: tuple[int, ...], image: tuple[int, int] | None, axis: int | None
) -> None:
    """Images of TensorFlow have their classes last: the other axis would compare nothing."""
    scores = models.normal(*shape)
    images = [image] if image else []
    if axis is None:
        with pytest.raises(UsageError, match="along the second or the last axis"):
            fitted("top1", [{"y": scores}], images)
        axis = 1
        scores = softmax(scores.swapaxes(1, 3)).swapaxes(1, 3)
    chosen = np.moveaxis(np.eye(shape[axis], dtype=np.float32)[scores.argmax(axis)], -1, axis)
    top1 = fitted("top1", [{"y": scores}], images)
    assert top1.judge([{"y": chosen}], [{"y": scores}]).error == 0
    assert fitted("iou", [{"y": scores}], images).forms == {"y": axis}


@pytest.mark.parametrize(("name", "classes"), [("top1", 1), ("top5", 5)])
def test_columns_of_an_image_are_no_classes(name: str, classes: int) -> None:
    """Too few classes for a check are refused: it would compare the best columns of each row."""
    for scores in (models.normal(1, classes, 20, 30), models.normal(1, 20, 30, classes)):
        with pytest.raises(UsageError, match=f"no scores of {classes + 1} classes"):
            fitted(name, [{"y": scores}])
    for shape, axis in (((1, 1, 1, 30), 3), ((1, 30, 1, 1), 1)):
        assert fitted(name, [{"y": models.normal(*shape)}]).forms == {"y": axis}


@pytest.mark.parametrize(("shape", "axis"), [((1, 4, 30), 1), ((1, 30, 4), 2), ((3, 9, 9), 1)])
def test_probabilities_tell_their_axis(shape: tuple[int, ...], axis: int) -> None:
    """Classes of times may lie before the times; scores that tell nothing have them last."""
    scores = models.normal(*shape)
    shares = softmax(scores.swapaxes(axis, -1)).swapaxes(axis, -1)
    assert fitted("perplexity", [{"y": shares}]).forms == {"y": {"axis": axis, "shares": True}}
    assert fitted("top1", [{"y": scores}]).forms == {"y": 2}


@pytest.mark.parametrize("name", FITTING)
def test_a_part_of_the_samples_is_judged_as_all_are(name: str) -> None:
    """What an output is was read once: one sample that looks otherwise is judged by the same."""
    blank = np.eye(9, dtype=np.float32)
    odd = {
        "boxes": np.concatenate([corners(1), [[1.5]]], -1, dtype=np.float32)[None],
        "ctc": blank[[8, 8, 1, 8]][None].repeat(2, 0),
        "iou": np.abs(models.normal(1, 6, 6, 6)),
    }.get(name, FITTING[name][0])
    whole = [{"y": each} for each in FITTING[name]]
    got, want = [{"y": odd * np.float32(0.5)}], [{"y": odd}]
    alone, among = (
        fitted(name, whole).judge([*got, *same], [*want, *same]).error for same in ([], whole)
    )
    assert alone is not None and among is not None
    assert (alone > 0) == (among > 0)


def test_images_of_several_sizes_tell_their_classes() -> None:
    """Where one shape alone would not do, they lie along the axis that is as long in all."""
    for shapes, axis in (((12, 18, 15), (18, 12, 15)), 3), (((15, 12, 18), (15, 18, 12)), 1):
        samples = [{"y": models.normal(1, *shape)} for shape in shapes]
        assert fitted("top1", samples).forms == {"y": axis}
