"""What tensors cannot say, as errors that are 0 for equal outputs: classes, words, images.

numpy alone and Python 3.8: `run_onnxruntime.py` takes these definitions along. All but the
boxes judge output by output, and the worst one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from precision_bisect.judging.comparators.matched_boxes import DoesNotFit, Found, matched_boxes

_FIRST = 5
# Stands for a probability of zero: the least number of FP16.
_LEAST = 2.0**-24
# Share of an image's largest value up to which it is of one colour: a step of FP16.
_CONTRAST = 2.0**-10
# Channels of an image in colours.
_COLOURS = (1, 3, 4)
_WINDOW, _SIGMA = 11, 1.5
"""SSIM's Gaussian window, as Wang et al. (2004) have it."""


def judge_task(name: str, outputs: list[Any], reference: list[Any]) -> Found:
    """Judge lists with a dict of arrays per sample by a check. Raises DoesNotFit."""
    if name == "boxes":
        return matched_boxes(outputs, reference)
    outcomes = []
    for output in reference[0]:
        pairs = [(o[output], r[output]) for o, r in zip(outputs, reference)]  # noqa: B905 - 3.8
        error, remark = _of_output(name, output, pairs)
        outcomes.append(Found(error, f"output {output!r}: {remark}"))
    return max(outcomes, key=lambda outcome: outcome.error)


def _of_output(name: str, output: str, pairs: list[Any]) -> Found:
    """Judge an output by a check, which sees no sample where both sides are empty."""
    for got, want in pairs:
        text = name == "ctc" and _is_text(want)  # which may take any number of steps
        if not want.size and got.shape != want.shape and not text:
            return _reshaped(got, want)
    nonempty = [(got, want) for got, want in pairs if want.size or got.size]
    return _BY_OUTPUT[name](output, nonempty) if nonempty else Found(0.0, "it is empty")


def _top1(name: str, pairs: list[Any]) -> Found:
    changed = rows = 0
    for got, want in pairs:
        axis = _classes(name, want, 2, labels=True)
        if got.shape != want.shape:
            return _reshaped(got, want)
        is_label = want.dtype.kind != "f"
        one, other = (x if is_label else x.argmax(axis) for x in (got, want))
        changed, rows = changed + int(np.count_nonzero(one != other)), rows + other.size
    return Found(changed / max(rows, 1), f"{changed} of {rows} rows have another class")


def _top5(name: str, pairs: list[Any]) -> Found:
    missed = rows = 0
    for got, want in pairs:
        axis = _classes(name, want, _FIRST + 1)
        if got.shape != want.shape:
            return _reshaped(got, want)
        both = [np.argsort(-np.moveaxis(x, axis, -1), -1, kind="stable") for x in (got, want)]
        one, other = (x[..., :_FIRST].reshape(-1, _FIRST) for x in both)
        missed += int(np.count_nonzero(~(other[:, :, None] == one[:, None, :]).any(-1)))
        rows += len(other)
    remark = f"{missed} of the first {_FIRST} classes of {rows} rows are others"
    return Found(missed / max(rows * _FIRST, 1), remark)


def _mean_iou(name: str, pairs: list[Any]) -> Found:
    if any(got.shape != want.shape for got, want in pairs):
        return _reshaped(*next(pair for pair in pairs if pair[0].shape != pair[1].shape))
    for _, want in pairs:
        if want.ndim < (3 if want.dtype.kind == "f" else 2):
            raise DoesNotFit(name, want, "has no pixels")
    if _are_masks(pairs):
        # What is above half of a probability, or above 0 of a logit, is of the class.
        shares = all(want.min() >= 0 and want.max() <= 1 for _, want in pairs)
        labels = [[x > (0.5 if shares else 0.0) for x in pair] for pair in pairs]
    else:
        axes = [_classes(name, want, 2, labels=True) for _, want in pairs]
        labels = [
            [x if x.dtype.kind != "f" else x.argmax(axis) for x in pair]
            for pair, axis in zip(pairs, axes)  # noqa: B905 - Python 3.8
        ]
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


def _are_masks(pairs: list[Any]) -> bool:
    """Tell whether all are images of one channel, which says where something is."""
    return all(
        want.dtype.kind == "f" and want.ndim == 4 and 1 in (want.shape[1], want.shape[3])
        for _, want in pairs
    )


def _perplexity(name: str, pairs: list[Any]) -> Found:
    total, rows = 0.0, 0
    for got, want in pairs:
        axis = _classes(name, want, 2)
        if got.shape != want.shape:
            return _reshaped(got, want)
        one, other = (np.moveaxis(x, axis, -1).astype(np.float64) for x in (got, want))
        shares = bool((other >= 0).all() and np.allclose(other.sum(-1), 1, atol=1e-2))
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


def _classes(name: str, want: Any, least: int, *, labels: bool = False) -> int:
    """Return the axis of the classes: the second of images, else the last.

    Images whose second and third axes are alike, and the fourth is shorter, have them last.
    """
    if labels and want.dtype.kind != "f":
        return -1
    last = want.ndim == 4 and want.shape[1] == want.shape[2] > want.shape[3]
    axis = 1 if want.ndim == 4 and not last else -1
    if want.dtype.kind != "f" or not want.ndim or want.shape[axis] < least:
        raise DoesNotFit(name, want, f"has no scores of {least} classes or more along an axis")
    return axis


def _ctc(name: str, pairs: list[Any]) -> Found:
    for _, want in pairs:
        if not _is_text(want):
            raise DoesNotFit(name, want, "has no scores of characters (batch, time, characters)")
    if any(g.ndim != w.ndim or g.shape[-1] != w.shape[-1] for g, w in pairs):
        return Found(math.inf, "the shape is another one")
    both = [(_characters(got), _characters(want)) for got, want in pairs]
    if any(len(got) != len(want) for got, want in both):
        return Found(math.inf, "the number of lines is another one")
    # CTC has its blank first or last, and writes it more often than any one character.
    characters, last = (
        np.concatenate([want.ravel() for _, want in both]),
        pairs[0][1].shape[-1] - 1,
    )
    blank = last if np.count_nonzero(characters == last) > np.count_nonzero(characters == 0) else 0
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


def _embeddings(name: str, pairs: list[Any]) -> Found:
    worst = 0.0
    for got, want in pairs:
        if want.dtype.kind != "f" or not want.ndim or want.shape[-1] < 2:
            raise DoesNotFit(name, want, "has no vectors along its last axis")
        if got.shape != want.shape:
            return _reshaped(got, want)
        one, other = (x.astype(np.float64).reshape(-1, x.shape[-1]) for x in (got, want))
        sizes = [np.linalg.norm(x, axis=-1) for x in (one, other)]
        # |a - b|^2 / 2 of unit vectors is 1 - cosine, and 0 for equal ones without rounding.
        units = [x / np.where(s > 0, s, 1.0)[:, None] for x, s in zip((one, other), sizes)]  # noqa: B905 - Python 3.8
        apart = ((units[0] - units[1]) ** 2).sum(-1) / 2
        apart = np.where((sizes[0] > 0) == (sizes[1] > 0), apart, 1.0)
        worst = max(worst, float(apart.max(initial=0.0)))
    return Found(worst, f"1 - cosine of the worst vector is {worst:.3g}")


def _ssim(name: str, pairs: list[Any]) -> Found:
    images = [_as_images(name, want) for _, want in pairs]
    for got, want in pairs:
        if got.shape != want.shape:
            return _reshaped(got, want)
    pairs = [(_as_images(name, got), want) for (got, _), want in zip(pairs, images)]  # noqa: B905
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


def _reshaped(got: Any, want: Any) -> Found:
    return Found(math.inf, f"the shape is {list(got.shape)} instead of {list(want.shape)}")


# By the name that --check has for it: an output of all samples, as pairs with the reference.
_BY_OUTPUT: dict[str, Callable[[str, list[Any]], Found]] = {
    "ctc": _ctc,
    "embeddings": _embeddings,
    "iou": _mean_iou,
    "perplexity": _perplexity,
    "ssim": _ssim,
    "top1": _top1,
    "top5": _top5,
}
