"""The boxes of a detector, matched: their number and order may change behind NonMaxSuppression.

The error is 1 - panoptic quality, weighted by score: 1 - 2 sum(score * IoU) / sum(scores). The
first sum is over pairs of one class with an IoU of at least 0.5, by the lower score of each. The
second is over the boxes of both sides. Boxes of little score weigh little. Padding, rows of
zeros or of -1, weighs nothing. In a raw head, as YOLO's, each box has its place, and the pairs are
those of one place. numpy alone and Python 3.8: `run_onnxruntime.py` takes these definitions along.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

# What panoptic quality calls a match.
_LEAST_IOU = 0.5
# Where more boxes than this share would end before they begin, they are (x, y, width, height).
_CENTRED = 0.1
# Share of the largest number: rows that are as near to 0, or to -1, are padding. A low type may
# leave noise in them.
_PADDING = 1e-3
# Boxes by image, those of the highest scores: a raw head has thousands, most of them near 0.
_MOST = 1000
# What the columns of rows may be, by their number: b of the box, s the score, l whole numbers.
_LAYOUTS = {
    5: ("bbbbs", "bbbbl"),
    6: ("bbbbsl", "bbbbls", "lsbbbb"),
    7: ("lbbbbls", "lbbbbsl", "llsbbbb"),
}


class DoesNotFit(Exception):
    """An output of the reference that a check cannot judge."""

    def __init__(self, name: str, array: Any, why: str) -> None:
        super().__init__(f"output {name!r} {list(array.shape)} of {array.dtype} {why}")


class Found(NamedTuple):
    """An error, and in words what was found."""

    error: float
    told: str


class _Boxes(NamedTuple):
    """The boxes of an image, by score: corners (boxes, 4), scores (boxes), labels (boxes, any)."""

    corners: Any
    scores: Any
    labels: Any


class _Roles(NamedTuple):
    """Which output says what; `layout` is that of the rows where they have more than the box.

    Scores that are logits become scores by "softmax", whose last class is no object, or "sigmoid".
    """

    boxes: str
    scores: str | None
    labels: str | None
    layout: str
    centred: bool
    logits: str


def box_forms(reference: list[Any]) -> dict[str, Any]:
    """Return what says what in all samples' outputs, {} for a raw head. Raises DoesNotFit."""
    if not is_head(reference):
        return box_roles(reference)._asdict()
    for sample in reference:
        ((name, head),) = sample.items()
        if not _within(taken_apart(np.asarray(head, np.float64)).scores):
            raise DoesNotFit(name, head, "has scores outside of 0 to 1")
    return {}


def matched_boxes(form: dict[str, Any], outputs: list[Any], reference: list[Any]) -> Found:
    """Judge lists with a dict of arrays per sample, by what the reference was read for."""
    if not form:
        return _by_place(outputs, reference)
    roles = _Roles(**form)
    if not any(np.size(sample[roles.boxes]) for sample in reference):
        # Which column holds the score is seen in boxes alone.
        more = sum(np.size(sample[roles.boxes]) > 0 for sample in outputs)
        return Found(float(more > 0), f"{more} of the samples have boxes, of the reference none")
    same = total = 0.0
    pairs = unmatched = 0
    for got, want in zip(outputs, reference):  # noqa: B905 - Python 3.8
        sides = [_images(sample, roles) for sample in (got, want)]
        if len(sides[0]) != len(sides[1]):
            return Found(math.inf, "the number of images is another one")
        for one, other in zip(*sides):  # noqa: B905 - Python 3.8
            shared, matched = _overlap(one, other)
            same, pairs = same + 2 * shared, pairs + matched
            total += float(one.scores.sum() + other.scores.sum())
            unmatched += len(one.scores) + len(other.scores) - 2 * matched
    remark = f"{pairs} pairs of boxes, {unmatched} boxes without"
    # Sums in another order may differ in their last digits.
    error = 1 - same / total if total else float(unmatched > 0)
    return Found(error if error > 1e-12 else 0.0, remark)


def is_head(reference: list[Any]) -> bool:
    """Tell whether the one output is a raw head: (images, 4 + classes, boxes) or as before."""
    if not reference or len(reference[0]) != 1:
        return False
    heads = [np.asarray(head) for sample in reference for head in sample.values()]
    return all(
        head.ndim == 3
        and head.dtype.kind == "f"
        and not _is_rows(head)
        and min(head.shape[1:]) > len("bbbb")
        for head in heads
    )


def _by_place(outputs: list[Any], reference: list[Any]) -> Found:
    """Judge raw heads, in which a box is found where it was."""
    same = total = 0.0
    for got, want in zip(outputs, reference):  # noqa: B905 - Python 3.8
        wanted, array = next(iter(want.values())), next(iter(got.values()))
        if np.shape(array) != np.shape(wanted):
            return Found(math.inf, "the number of boxes is another one")
        one, other = (taken_apart(np.asarray(head, np.float64)) for head in (array, wanted))
        scores = [np.clip(side.scores.max(-1), 0.0, 1.0) for side in (one, other)]
        overlap = _iou(one.corners, other.corners)
        pairs = (one.labels == other.labels) & (overlap >= _LEAST_IOU)
        same += 2 * float((np.minimum(*scores) * overlap)[pairs].sum())
        total += float(sum(side.sum() for side in scores))
    remark = f"boxes of a raw head, by score {same / 2:.3g} of {total / 2:.3g}"
    error = 1 - same / total if total else 0.0
    return Found(error if error > 1e-12 else 0.0, remark)


def taken_apart(head: Any) -> _Boxes:
    """Return the boxes of a raw head in place, with scores of all classes.

    From YOLOv8 on a head is (images, 4 + classes, boxes). Before it was (images, boxes, 5 +
    classes), in which the fifth number is the score of there being anything. Boxes are (x, y,
    width, height), with their centre.
    """
    new = head.shape[1] < head.shape[2]
    rows = head.swapaxes(1, 2) if new else head
    scores = rows[..., 4:] if new else rows[..., 4:5] * rows[..., 5:]
    half = rows[..., 2:4] / 2
    corners = np.concatenate([rows[..., :2] - half, rows[..., :2] + half], -1)
    return _Boxes(corners, scores, scores.argmax(-1))


def _overlap(got: _Boxes, want: _Boxes) -> tuple[float, int]:
    """Return score * IoU summed over the pairs, and how many there are: the best scores first."""
    free = np.ones(len(got.scores), bool)
    shared, pairs = 0.0, 0
    # A copy of the samples moves labels that pass through.
    moved = bool((want.labels % 1 != 0).any())
    labels, wanted = (np.rint(x) if moved else x for x in (got.labels, want.labels))
    for corners, score, label in zip(want.corners, want.scores, wanted):  # noqa: B905
        fits = labels.shape[-1] == len(label)
        own = free & ((labels == label).all(-1) if fits else False)
        overlaps = np.where(own, _iou(got.corners, corners), 0.0)
        if overlaps.size and overlaps.max() >= _LEAST_IOU:
            best = int(overlaps.argmax())
            free[best] = False
            shared += float(min(score, got.scores[best]) * overlaps[best])
            pairs += 1
    return shared, pairs


def _iou(many: Any, one: Any) -> Any:
    low = np.maximum(many[..., :2], one[..., :2])
    high = np.minimum(many[..., 2:], one[..., 2:])
    inner = np.maximum(high - low, 0).prod(-1)
    sizes = [np.maximum(x[..., 2:] - x[..., :2], 0).prod(-1) for x in (many, one)]
    union = sizes[0] + sizes[1] - inner
    alike = (many == one).all(-1)
    return np.where(alike, 1.0, inner / np.where(union > 0, union, 1.0))


def _images(sample: Any, roles: _Roles) -> list[_Boxes]:
    """Return the boxes of each image of a sample; whatever its shapes are, it raises nothing."""
    rows, columns = np.asarray(sample[roles.boxes], np.float64), np.array(list(roles.layout))
    rows = rows[None] if rows.ndim == 2 else rows
    # A plan may have broken the outputs altogether: that is no box at all, not an error.
    if rows.ndim != 3 or rows.shape[-1] != len(columns):
        rows = np.zeros((1, 0, len(columns)))
    images = []
    for number, table in enumerate(rows):
        corners, labels = table[:, columns == "b"], table[:, columns == "l"]
        scores = table[:, columns == "s"].min(-1, initial=1.0)
        if roles.scores:
            class_scores = _scores(_part(sample[roles.scores], number, rows), roles.logits)
            scores = class_scores.max(-1, initial=0.0)
            labels = class_scores.argmax(-1)[:, None] if class_scores.shape[-1] > 1 else labels
        if roles.labels:
            labels = _part(sample[roles.labels], number, rows)
        images.append(_sorted(corners, scores, labels, roles.centred))
    return images


def _sorted(corners: Any, scores: Any, labels: Any, centred: bool) -> _Boxes:
    if not len(corners) == len(scores) == len(labels):
        corners, scores, labels = corners[:0], scores[:0], labels[:0]
    real = ~_is_padding(corners)
    corners, scores, labels = corners[real], scores[real], labels[real]
    if centred:
        half = corners[:, 2:] / 2
        corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], -1)
    scores = np.clip(scores, 0.0, 1.0)
    order = np.argsort(-scores, kind="stable")[:_MOST]
    order = order[scores[order] > 0]
    return _Boxes(corners[order], scores[order], labels[order])


def _is_padding(corners: Any) -> Any:
    near = _PADDING * np.abs(corners).max(initial=0.0)
    return np.minimum(np.abs(corners).max(-1), np.abs(corners + 1).max(-1)) <= near


def _part(array: Any, image: int, rows: Any) -> Any:
    """Return what an output says of one image, as (boxes, columns); nothing of other boxes."""
    array, (images, boxes, _) = np.asarray(array, np.float64), rows.shape
    if not boxes or array.size % (images * boxes):
        return np.zeros((0, 1))
    return array.reshape(images, boxes, -1)[image]


def box_roles(reference: list[Any]) -> _Roles:
    """Find what each output says, by its shape and its values. Raises DoesNotFit."""
    arrays = {n: [np.asarray(s[n]) for s in reference] for n in reference[0]}
    boxes = [n for n, of in arrays.items() if all(_is_rows(array) for array in of)]
    if not boxes:
        name, of = next(iter(arrays.items()))
        raise DoesNotFit(name, of[0], "has no boxes: rows of 4 to 7 numbers")
    logits = ""
    by_role: dict[str, str] = {"boxes": max(boxes, key=lambda n: arrays[n][0].shape[-1] == 4)}
    rows = [array.shape[:-1] for array in arrays[by_role["boxes"]]]
    for name in (n for n in arrays if n != by_role["boxes"]):
        of = arrays[name]
        role = "scores" if of[0].dtype.kind == "f" else "labels"
        if role in by_role or not all(
            _by_row(array, shape)
            for array, shape in zip(of, rows)  # noqa: B905 - Python 3.8
        ):
            raise DoesNotFit(name, of[0], f"has no {role} of the boxes in {by_role['boxes']!r}")
        if role == "scores" and not all(_within(array) for array in of):
            logits = _logits(of) if of[0].ndim == len(rows[0]) + 1 else ""
            if not logits:
                raise DoesNotFit(name, of[0], "has scores outside of 0 to 1")
        by_role[role] = name
    table = np.concatenate(
        [
            array.reshape(-1, array.shape[-1]).astype(np.float64)
            for array in arrays[by_role["boxes"]]
        ]
    )
    layout = _layout(by_role["boxes"], table)
    corners = table[:, [i for i, kind in enumerate(layout) if kind == "b"]]
    corners = corners[~_is_padding(corners)]
    turned = int((corners[:, 2:] < corners[:, :2]).any(-1).sum())
    centred = turned > _CENTRED * len(corners)
    scores, labels = by_role.get("scores"), by_role.get("labels")
    return _Roles(by_role["boxes"], scores, labels, layout, centred, logits)


def _logits(of: list[Any]) -> str:
    """Return how a DETR's logits become scores, "" where that is not clear: most find nothing.

    By softmax the last class is then the largest, by sigmoid none is above 0.
    """
    rows = np.concatenate([array.reshape(-1, array.shape[-1]) for array in of])
    if rows.shape[-1] > 2 and (rows.argmax(-1) == rows.shape[-1] - 1).mean() > 0.5:
        return "softmax"
    return "sigmoid" if rows.size and (rows.max(-1) < 0).mean() > 0.5 else ""


def _scores(values: Any, logits: str) -> Any:
    """Return scores as they are, or from the logits of one image, (boxes, classes)."""
    if logits == "softmax" and values.size:
        shares = np.exp(values - values.max(-1, keepdims=True))
        return (shares / shares.sum(-1, keepdims=True))[:, :-1]
    return 1 / (1 + np.exp(-values)) if logits else values


def _is_rows(array: Any) -> bool:
    return array.ndim in (2, 3) and (array.shape[-1] == 4 or array.shape[-1] in _LAYOUTS)


def _by_row(array: Any, rows: Any) -> bool:
    """Tell whether an array has one value or more for each row, in the order of the rows."""
    shape = array.shape
    images = rows[0] if len(rows) > 1 else 1
    flat = (images, rows[-1]) if len(rows) > 1 and shape[:1] == (images,) else rows[-1:]
    return shape[: len(flat)] == flat and len(shape) - len(flat) <= 1


def _within(scores: Any) -> bool:
    """Tell whether all are scores; -1 is one of padding."""
    return bool((((scores >= 0) & (scores <= 1)) | (scores == -1)).all())


def _layout(name: str, table: Any) -> str:
    """Return the first layout that fits. Raises DoesNotFit.

    Whole numbers are classes, also those of two; they are scores only where nothing else fits.
    """
    if table.shape[-1] == 4:
        return "bbbb"
    for whole_scores in (False, True):
        for layout in _LAYOUTS[table.shape[-1]]:
            kinds = np.array(list(layout))
            labels, scores = table[:, kinds == "l"], table[:, kinds == "s"]
            fits = bool((labels % 1 == 0).all()) and _within(scores)
            if fits and (whole_scores or not scores.size or bool((scores % 1 != 0).any())):
                return layout
    raise DoesNotFit(name, table, "has no score from 0 to 1, or no whole numbers as labels")
