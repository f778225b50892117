"""What tensors cannot say, as errors that are 0 for equal outputs: classes, words, images.

What a check takes an output for, its form, is read once, from all samples: a copy of them, a part
of them, and the target are judged by the same form. numpy alone and Python 3.8:
`run_onnxruntime.py` takes these definitions along. All but the boxes judge output by output, and
the worst one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from precision_bisect.judging.comparators.matched_boxes import (
    DoesNotFit,
    Found,
    box_forms,
    matched_boxes,
)

_FIRST = 5
# Stands for a probability of zero: the least number of FP16.
_LEAST = 2.0**-24
# Share of an image's largest value up to which it is of one colour: a step of FP16.
_CONTRAST = 2.0**-10
# Channels of an image in colours.
_COLOURS = (1, 3, 4)
_WINDOW, _SIGMA = 11, 1.5
"""SSIM's Gaussian window, as Wang et al. (2004) have it."""
# The sides of an image are that many times nearer to each other than to the number of classes.
_NEARER = 1.5
_LARGEST_STRIDE = 64


def read_forms(
    name: str, reference: list[Any], images: Collection[tuple[int, int]] = ()
) -> dict[str, Any]:
    """Return what a check takes the outputs of all samples for, in JSON's types.

    `images` are the height and width of each sample's image, where each has one. Raises
    DoesNotFit.
    """
    if name == "boxes":
        return box_forms(reference)
    sizes = [*images] if images else [None for _ in reference]
    read, _ = _BY_OUTPUT[name]
    forms = {}
    for output in reference[0]:
        both = zip((sample[output] for sample in reference), sizes)  # noqa: B905 - Python 3.8
        seen = [(array, size) for array, size in both if array.size]
        forms[output] = read(output, seen) if seen else None
    return forms


def judge_task(
    name: str, forms: dict[str, Any], outputs: list[Any], reference: list[Any]
) -> Found:
    """Judge lists with a dict of arrays per sample by a check, in the forms that were read."""
    if name == "boxes":
        return matched_boxes(forms, outputs, reference)
    outcomes = []
    for output, form in forms.items():
        pairs = [(o[output], r[output]) for o, r in zip(outputs, reference)]  # noqa: B905 - 3.8
        error, remark = _of_output(name, form, pairs)
        outcomes.append(Found(error, f"output {output!r}: {remark}"))
    return max(outcomes, key=lambda outcome: outcome.error)


def _of_output(name: str, form: Any, pairs: list[Any]) -> Found:
    """Judge an output by a check, which sees no sample where both sides are empty."""
    for got, want in pairs:
        if got.shape != want.shape and not (name == "ctc" and _is_text(got) and _is_text(want)):
            shapes = f"{list(got.shape)} instead of {list(want.shape)}"
            return Found(math.inf, f"the shape is {shapes}")
    nonempty = [(got, want) for got, want in pairs if want.size or got.size]
    if form is None or not nonempty:
        # What the reference never has is found by no form.
        return Found(math.inf if nonempty else 0.0, "it is empty in the reference")
    _, judge = _BY_OUTPUT[name]
    return judge(form, nonempty)


def _class_form(name: str, seen: list[Any], least: int = 2, *, labels: bool = True) -> Any:
    """Return the axis of the classes: the second or the last; "labels" for whole numbers.

    It is what probabilities sum to 1 along; in images what leaves the sides of the sample's
    image, sides that are equal, or of more than one row those nearer to each other; elsewhere
    the last.
    """
    arrays = [array for array, _ in seen]
    if labels and all(array.dtype.kind != "f" for array in arrays):
        return "labels"
    why = f"has no scores of {least} classes or more along an axis"
    if not all(array.dtype.kind == "f" and array.ndim for array in arrays):
        raise DoesNotFit(name, arrays[0], why)
    ranks = {array.ndim for array in arrays}
    axes = [ranks.pop() - 1, 1] if ranks in ({3}, {4}) else [-1]
    # Images may be of several sizes, their classes are as many.
    alike = [axis for axis in axes if len({array.shape[axis] for array in arrays}) == 1]
    axes = alike or axes
    line = any(array.ndim == 4 and array.shape[2] == 1 for array in arrays)
    longest = {axis: max(_length(*_sides(array, axis)) for array in arrays) for axis in axes}
    tests: list[Callable[[int], bool]] = [
        lambda axis: all(_are_shares(array, axis) for array in arrays),
        lambda axis: all(size and _scaled(_sides(array, axis), size) for array, size in seen),
        lambda axis: longest[axis] == 1,
        # A line of places has no shape that tells it from a line of classes.
        lambda axis: (
            not line and all(longest[axis] * _NEARER < longest[o] for o in axes if o != axis)
        ),
        # Not before: the columns of an image would be taken for its few classes.
        lambda axis: all(array.shape[axis] >= least for array in arrays),
        lambda axis: arrays[0].ndim == 3 and axis == axes[0],
    ]
    for test in tests:
        fitting = [axis for axis in axes if test(axis)] if len(axes) > 1 else axes
        if len(fitting) == 1:
            break
    else:
        raise DoesNotFit(name, arrays[0], "has its classes along the second or the last axis")
    if any(array.shape[fitting[0]] < least for array in arrays):
        raise DoesNotFit(name, arrays[0], why)
    return fitting[0]


def _sides(array: Any, axis: int) -> Any:
    """Return the height and the width of images with their classes along an axis, else ones."""
    return (array.shape[2:] if axis == 1 else array.shape[1:3]) if array.ndim == 4 else (1, 1)


def _length(high: int, wide: int) -> float:
    return max(high, wide) / min(high, wide)


def _scaled(sides: Any, size: tuple[int, int]) -> bool:
    """Tell whether sides are an image's, divided by a stride and rounded up or down."""
    high, wide = size
    rounded = [
        side
        for stride in range(1, _LARGEST_STRIDE + 1)
        for side in ((high // stride, wide // stride), (-(-high // stride), -(-wide // stride)))
    ]
    return tuple(sides) in rounded


def _are_shares(array: Any, axis: int) -> bool:
    return bool((array >= 0).all() and np.allclose(array.sum(axis), 1, atol=1e-2))


def _top1(axis: Any, pairs: list[Any]) -> Found:
    changed = rows = 0
    for got, want in pairs:
        one, other = (x if axis == "labels" else x.argmax(axis) for x in (got, want))
        changed, rows = changed + int(np.count_nonzero(one != other)), rows + other.size
    return Found(changed / max(rows, 1), f"{changed} of {rows} rows have another class")


def _top5_form(name: str, seen: list[Any]) -> Any:
    return _class_form(name, seen, _FIRST + 1, labels=False)


def _top5(axis: int, pairs: list[Any]) -> Found:
    missed = rows = 0
    for got, want in pairs:
        both = [np.argsort(-np.moveaxis(x, axis, -1), -1, kind="stable") for x in (got, want)]
        one, other = (x[..., :_FIRST].reshape(-1, _FIRST) for x in both)
        missed += int(np.count_nonzero(~(other[:, :, None] == one[:, None, :]).any(-1)))
        rows += len(other)
    remark = f"{missed} of the first {_FIRST} classes of {rows} rows are others"
    return Found(missed / max(rows * _FIRST, 1), remark)


def _iou_form(name: str, seen: list[Any]) -> Any:
    """Return the form of classes, or above what a mask of one channel is of the class."""
    arrays = [array for array, _ in seen]
    for array in arrays:
        if array.ndim < (3 if array.dtype.kind == "f" else 2):
            raise DoesNotFit(name, array, "has no pixels")
    if all(a.dtype.kind == "f" and a.ndim == 4 and 1 in a.shape[1::2] for a in arrays):
        # Half of a probability, or 0 of a logit.
        return {"above": 0.5 if all(a.min() >= 0 and a.max() <= 1 for a in arrays) else 0.0}
    return _class_form(name, seen)


def _mean_iou(form: Any, pairs: list[Any]) -> Found:
    if isinstance(form, dict):
        labels = [[x > form["above"] for x in pair] for pair in pairs]
    else:
        labels = [[x if form == "labels" else x.argmax(form) for x in pair] for pair in pairs]
    one, other = (
        np.concatenate([x.ravel() for x in side])
        for side in zip(*labels)  # noqa: B905 - Python 3.8
    )
    classes = np.unique(other)
    shared, got_area, area = (
        np.bincount(np.searchsorted(classes, x[np.isin(x, classes)]), minlength=len(classes))
        for x in (other[one == other], one, other)
    )
    mean = float((shared / (got_area + area - shared)).mean())
    return Found(1 - mean, f"the mean IoU of {len(classes)} classes is {mean:.4g}")


def _perplexity_form(name: str, seen: list[Any]) -> Any:
    axis = _class_form(name, seen, labels=False)
    return {"axis": axis, "shares": all(_are_shares(array, axis) for array, _ in seen)}


def _perplexity(form: Any, pairs: list[Any]) -> Found:
    total, rows = 0.0, 0
    axis, shares = form["axis"], form["shares"]
    for got, want in pairs:
        one, other = (np.moveaxis(x, axis, -1).astype(np.float64) for x in (got, want))
        one, other = (_logarithms(x, shares) for x in (one, other))
        total += float((np.exp(other) * (other - one)).sum())
        rows += other[..., 0].size
    mean = max(total / max(rows, 1), 0.0)
    return Found(math.expm1(min(mean, 700.0)), f"KL divergence {mean:.3g} over {rows} rows")


def _logarithms(x: Any, shares: bool) -> Any:
    """Return log-probabilities along the last axis, of probabilities or of logits."""
    if shares:
        x = np.log(np.maximum(x, _LEAST))
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _ctc_form(name: str, seen: list[Any]) -> Any:
    """Return the blank, which CTC has first or last, and writes more often than a character."""
    for array, _ in seen:
        if not _is_text(array):
            raise DoesNotFit(name, array, "has no scores of characters (batch, time, characters)")
    characters = np.concatenate([_characters(array).ravel() for array, _ in seen])
    last = seen[0][0].shape[-1] - 1
    more = np.count_nonzero(characters == last) > np.count_nonzero(characters == 0)
    return last if more else 0


def _ctc(blank: int, pairs: list[Any]) -> Found:
    if any(g.ndim != w.ndim or g.shape[-1] != w.shape[-1] for g, w in pairs):
        return Found(math.inf, "the shape is another one")
    both = [(_characters(got), _characters(want)) for got, want in pairs]
    if any(len(got) != len(want) for got, want in both):
        return Found(math.inf, "the number of lines is another one")
    edits = length = 0
    for got, want in both:
        for one, other in zip(got, want):  # noqa: B905 - Python 3.8
            text = _text(other, blank)
            edits, length = edits + _distance(_text(one, blank), text), length + len(text)
    return Found(edits / max(length, 1), f"{edits} edits in a text of {length} characters")


def _is_text(want: Any) -> bool:
    return want.dtype.kind == "f" and want.ndim in (2, 3) and want.shape[-1] >= 2


def _characters(scores: Any) -> Any:
    """Return the best character of each line and time: (lines, time)."""
    best = scores.argmax(-1)
    if best.ndim == 1:
        return best[None]
    return best.T if best.shape[1] == 1 else best


def _text(best: Any, blank: int) -> Any:
    kept = np.append(True, best[1:] != best[:-1]) if best.size else np.zeros(0, bool)
    return best[kept & (best != blank)]


def _distance(one: Any, other: Any) -> int:
    """Return how many characters are inserted, left out or replaced (Levenshtein)."""
    steps = np.arange(len(other) + 1)
    row = steps
    for number, symbol in enumerate(one):
        cheapest = np.append(number + 1, np.minimum(row[1:] + 1, row[:-1] + (other != symbol)))
        row = np.minimum.accumulate(cheapest - steps) + steps
    return int(row[-1])


def _embeddings_form(name: str, seen: list[Any]) -> Any:
    for array, _ in seen:
        if array.dtype.kind != "f" or not array.ndim or array.shape[-1] < 2:
            raise DoesNotFit(name, array, "has no vectors along its last axis")
    return "vectors"


def _embeddings(form: str, pairs: list[Any]) -> Found:
    worst = 0.0
    for got, want in pairs:
        one, other = (x.astype(np.float64).reshape(-1, x.shape[-1]) for x in (got, want))
        sizes = [np.linalg.norm(x, axis=-1) for x in (one, other)]
        # |a - b|^2 / 2 of unit vectors is 1 - cosine, and 0 for equal ones without rounding.
        units = [x / np.where(s > 0, s, 1.0)[:, None] for x, s in zip((one, other), sizes)]  # noqa: B905 - Python 3.8
        apart = ((units[0] - units[1]) ** 2).sum(-1) / 2
        apart = np.where((sizes[0] > 0) == (sizes[1] > 0), apart, 1.0)
        worst = max(worst, float(apart.max(initial=0.0)))
    return Found(worst, f"1 - cosine of the worst vector is {worst:.3g}")


def _ssim_form(name: str, seen: list[Any]) -> Any:
    for array, _ in seen:
        _as_images(name, array)
    return "images"


def _ssim(form: str, pairs: list[Any]) -> Found:
    pairs = [tuple(_as_images(form, x) for x in pair) for pair in pairs]
    spans = [_spans(want) for _, want in pairs]
    # What is black has no range of its own, and gets the least that there is.
    least = min((float(span[span > 0].min()) for span in spans if span.any()), default=1.0)
    alike = min(
        float(_similarity(got, want, np.where(span > 0, span, least)).min())
        for (got, want), span in zip(pairs, spans)  # noqa: B905 - Python 3.8
    )
    return Found(1 - alike, f"SSIM of the worst image is {alike:.4g}")


def _spans(images: Any) -> Any:
    """Return the range of each channel: from 0 if it is of one colour, of the others if black.

    It is 0 where the image is black.
    """
    brightest = np.abs(images).max((2, 3), keepdims=True)
    spans = np.ptp(images, (2, 3), keepdims=True)
    spans = np.where(spans > _CONTRAST * brightest, spans, brightest)
    return np.where(spans > 0, spans, spans.max(1, keepdims=True))


def _as_images(name: str, array: Any) -> Any:
    """Return images as (images, channels, height, width). Raises DoesNotFit for others.

    Channels that are no colours are images of their own.
    """
    last = array.ndim > 2 and array.shape[-1] in _COLOURS
    high, wide = array.shape[-3:-1] if last else (0, 0, *array.shape)[-2:]
    if min(high, wide) < _WINDOW or array.dtype.kind not in "fiu" or not array.size:
        side = f"{_WINDOW} x {_WINDOW}"
        raise DoesNotFit(
            name, array, f"has no images of at least {side} pixels along its last axes"
        )
    array = np.moveaxis(array, -1, -3) if last else array
    channels = array.shape[-3] if array.ndim > 2 and array.shape[-3] in _COLOURS else 1
    return array.astype(np.float64).reshape(-1, channels, *array.shape[-2:])


def _similarity(x: Any, y: Any, span: Any) -> Any:
    """Return the SSIM of each image, whose values have this range."""
    small = ((0.01 * span) ** 2, (0.03 * span) ** 2)
    mean_x, mean_y = _blurred(x), _blurred(y)
    of_x, of_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    both = _blurred(x * y) - mean_x * mean_y
    light = (2 * mean_x * mean_y + small[0]) / (mean_x**2 + mean_y**2 + small[0])
    return (light * (2 * both + small[1]) / (of_x + of_y + small[1])).mean((1, 2, 3))


def _blurred(x: Any) -> Any:
    away = np.arange(_WINDOW) - _WINDOW // 2
    weights = np.exp(-0.5 * (away / _SIGMA) ** 2)
    weights = weights / weights.sum()
    for axis in (-2, -1):
        windows = np.lib.stride_tricks.sliding_window_view(x, _WINDOW, axis)
        x = windows @ weights
    return x


# By the name that --check has for it: what reads the form of an output from its arrays, each with
# the size of the sample's image or None; what judges by it all samples, as pairs with the
# reference.
_BY_OUTPUT: dict[
    str, tuple[Callable[[str, list[Any]], Any], Callable[[Any, list[Any]], Found]]
] = {
    "ctc": (_ctc_form, _ctc),
    "embeddings": (_embeddings_form, _embeddings),
    "iou": (_iou_form, _mean_iou),
    "perplexity": (_perplexity_form, _perplexity),
    "ssim": (_ssim_form, _ssim),
    "top1": (_class_form, _top1),
    "top5": (_top5_form, _top5),
}
