"""What outputs seem to be, before a search: boxes, classes, masks, vectors; and their check.

Advice that is wrong costs more than none: shapes alone prove nothing, so the graph, the values in
FP32 and the size of the image have to agree, in all samples and of all outputs. A check is advised
only once it was tried out on the very outputs.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.graph import operators
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.matched_boxes import (
    DoesNotFit,
    box_roles,
    is_head,
    taken_apart,
)
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from precision_bisect.settings.check_words import READY_MADE
from precision_bisect.settings.sample_options import DEFAULT_METRIC, RGB


class Head(StrEnum):
    """What all outputs of a model seem to be."""

    RAW_BOXES = "boxes in pixels, one for each place of the image"
    BOXES = "boxes of what was detected"
    CLASSES = "scores of classes"
    TOKENS = "scores of the next token"
    MASKS = "a class for each pixel"
    VECTORS = "embeddings"

    @property
    def check(self) -> str:
        """The name of the check that suits it."""
        return _CHECKS[self]


_CHECKS: Mapping[Head, str] = {
    Head.RAW_BOXES: "boxes",
    Head.BOXES: "boxes",
    Head.CLASSES: "top1",
    Head.TOKENS: "perplexity",
    Head.MASKS: "iou",
    Head.VECTORS: "embeddings",
}
_STRIDES = (4, 8, 16, 32, 64, 128)
_MOST_ANCHORS = 3
# Boxes that reach further are in pixels, not in shares of the image.
_PIXELS = 2.0
_SELECTING = frozenset(
    ("NonMaxSuppression", "EfficientNMS_TRT", "EfficientNMSLandmark_TRT", "BatchedNMS_TRT")
)
_PASSING = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
# How many classes ImageNet has, and with background or all of it.
_IMAGENET = (1000, 1001, 21841, 21843)
# From so many classes of a token on they are the tokens of a language.
_VOCABULARY = 5000
# So many classes data sets of segmented scenes have: from 5 on they are no colours or flow, up to
# 200 no features.
_MASK_CLASSES = range(5, 201)
# A mask has at most this share of pixels that are further than this from both 0 and 1.
_UNDECIDED = 0.1
_SHORTEST_VECTOR = 64
# How far sums of shares and lengths of vectors may be from 1.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizedHead:
    """What the outputs seem to be, with the shape of the first, and the check that suits them."""

    head: Head
    outputs: Sequence[str]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return the advice in one line."""
        named = ", ".join(map(repr, self.outputs))
        look = "looks" if len(self.outputs) == 1 else "look"
        shape = f" {list(self.shape)}" if len(self.outputs) == 1 else ""
        limit = READY_MADE[self.head.check]
        return (
            f"output {named}{shape} {look} like {self.head}: --check {self.head.check} --tol "
            f"{limit.tol:g} limits {limit.what}, not each number"
        )


def head_remarks(
    options: Options, model: Model, samples: Sequence[Sample], reference: Sequence[Sample]
) -> list[str]:
    """Return the advice where nobody has chosen what judges, or limits for some outputs.

    Four scores have the shape of a box, so `boxes` takes them: that is advised against, too.
    """
    boxes = options.check == Head.BOXES.check
    chosen = (options.check is not None and not boxes) or options.metric != DEFAULT_METRIC
    by_output = any(isinstance(x, Mapping) for x in (options.tol, options.atol, options.rtol))
    head = None if chosen or by_output else recognized_head(model, samples, reference)
    return [] if head is None or (boxes and head.head.check == options.check) else [str(head)]


def recognized_head(
    model: Model, samples: Sequence[Sample], reference: Sequence[Sample]
) -> RecognizedHead | None:
    """Return what all outputs seem to be, None where that is not clear or its check is no use."""
    view = View(model)
    outputs = [output.name for output in model.outputs]
    for find in (_boxes, _masks, _classes, _vectors):
        head = find(_Outputs(model, view, samples, reference))
        if head is None:
            continue
        check = ReadyMade(name=head.check, outputs=outputs, tolerance=READY_MADE[head.check].tol)
        try:
            judge = check.fitted(reference, image_sizes(model, samples))
            try_out(judge, reference, f"--check {head.check}")
        except PrecisionBisectError:
            return None
        return RecognizedHead(head=head, outputs=outputs, shape=np.shape(reference[0][outputs[0]]))
    return None


def image_sizes(model: Model, samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """Return the height and the width of the one image of each sample, nothing for others."""
    images = [
        spec.name
        for spec in model.inputs
        if len(spec.shape or ()) == 4 and {1, RGB} & {*(spec.shape or ())[1::2]}
    ]
    shapes = [sample[images[0]].shape for sample in samples] if len(images) == 1 else []
    return [shape[-2:] if shape[1] in (1, RGB) else shape[1:3] for shape in shapes]


class _Outputs:
    """The outputs of a model in FP32, and what they come from."""

    def __init__(
        self, model: Model, view: View, samples: Sequence[Sample], reference: Sequence[Sample]
    ) -> None:
        self.reference = reference
        self.operators = operators(model.proto.graph)
        self.names = [output.name for output in model.outputs]
        self.image_sizes = image_sizes(model, samples)
        self._view = view
        self.of_tokens = all((spec.dtype or "").startswith("int") for spec in model.inputs)

    def are(self, holds: Callable[[NDArray[Any]], bool], ranks: Collection[int]) -> bool:
        """Tell whether all outputs of all samples are arrays of these ranks for which it holds."""
        return all(
            array.ndim in ranks and array.size > 0 and holds(array)
            for sample in self.reference
            for array in sample.values()
        )

    def made_by(self, *op_types: str) -> bool:
        """Tell whether such an operator makes each output, but for casts and changes of shape."""
        return all(self._origin(name, op_types) is not None for name in self.names)

    def _origin(self, name: str, op_types: Sequence[str]) -> onnx.NodeProto | None:
        while (passing := self._view.made_by(name, *_PASSING)) is not None:
            if passing.op_type in op_types:
                return passing
            name = passing.input[0]
        return self._view.made_by(name, *op_types)

    def named(self, word: str) -> bool:
        return all(word in name.lower() for name in self.names)


def _boxes(outputs: _Outputs) -> Head | None:
    """Recognise a raw head by its places in the image, rows by what selects or names them."""
    sizes = outputs.image_sizes
    if not sizes:
        return None
    reference = list(outputs.reference)
    if is_head(reference):
        places = all(map(_has_places, reference, sizes))
        return Head.RAW_BOXES if places else None
    # The checks' own roles decide: what `--check boxes` could not judge is not proposed.
    try:
        roles = box_roles(reference)
    except DoesNotFit:
        return None
    labelled = "s" in roles.layout and "l" in roles.layout and "TopK" in outputs.operators
    named = roles.scores is not None and "box" in roles.boxes.lower()
    selected = not _SELECTING.isdisjoint(outputs.operators)
    return Head.BOXES if selected or named or labelled else None


def _has_places(sample: Sample, size: tuple[int, int]) -> bool:
    """Tell whether a raw head has a box for each cell of some grids, in or around the image."""
    (head,) = sample.values()
    corners, scores, _ = taken_apart(np.asarray(head, np.float64))
    cells = [
        sum(math.ceil(size[0] / stride) * math.ceil(size[1] / stride) for stride in run)
        for first, last in combinations(range(len(_STRIDES) + 1), 2)
        for run in [_STRIDES[first:last]]
    ]
    counts = {anchors * count for count in cells for anchors in range(1, _MOST_ANCHORS + 1)}
    if corners.shape[1] not in counts or not (np.isfinite(corners).all() and scores.size):
        return False
    # Places in pixels lie around the image's middle; other tables of numbers do not.
    middles = (corners[..., :2] + corners[..., 2:]) / 2
    around = np.abs(middles / np.array(size[::-1]) - 0.5).max() <= 1.0
    shaped = (corners[..., 2:] >= corners[..., :2]).all() and corners.max() > _PIXELS
    return bool(around and shaped and scores.min() >= 0 and scores.max() <= 1)


def _masks(outputs: _Outputs) -> Head | None:
    """Recognise classes of pixels: whole numbers, shares along an axis, scores as large."""
    sizes = outputs.image_sizes
    if not sizes:
        return None
    if outputs.made_by("ArgMax") and outputs.are(lambda a: a.dtype.kind in "iu", (3, 4)):
        return Head.MASKS
    single = outputs.are(lambda a: a.dtype.kind == "f" and a.shape[1] == 1 and _decided(a), (4,))
    if single and outputs.made_by("Sigmoid"):
        sized = zip(outputs.reference, sizes, strict=True)
        same = all(a.shape[-2:] == size for sample, size in sized for a in sample.values())
        return Head.MASKS if same else None
    classes = outputs.are(lambda a: a.dtype.kind == "f" and a.shape[1] > 1, (4,))
    if not classes:
        return None
    shares = outputs.made_by("Softmax") and outputs.are(lambda a: _shares(a, 1), (4,))
    enlarged = outputs.made_by("Resize", "Upsample") and all(
        array.shape[-2:] == size and array.shape[1] in _MASK_CLASSES
        for sample, size in zip(outputs.reference, sizes, strict=True)
        for array in sample.values()
    )
    return Head.MASKS if shares or enlarged or outputs.named("logits") else None


def _decided(array: NDArray[Any]) -> bool:
    """Tell whether nearly all are near 0 or near 1, and some near either: no picture is so."""
    low, high = (array < _UNDECIDED).mean(), (array > 1 - _UNDECIDED).mean()
    return bool(min(low, high) > 0 and low + high >= 1 - _UNDECIDED)


def _classes(outputs: _Outputs) -> Head | None:
    """Recognise classes of a sample or of its tokens: by shares, by a name, by how many."""
    if not outputs.are(lambda a: a.dtype.kind == "f" and a.shape[-1] > 1, (2, 3)):
        return None
    flat = outputs.are(lambda _: True, (2,))
    if flat and outputs.made_by("Softmax") and outputs.are(lambda a: _shares(a, -1), (2,)):
        return Head.CLASSES
    if outputs.named("logits") and (flat or outputs.of_tokens):
        language = not flat and outputs.are(lambda a: a.shape[-1] >= _VOCABULARY, (3,))
        return Head.TOKENS if language else Head.CLASSES
    imagenet = flat and outputs.are(lambda a: a.shape[1] in _IMAGENET, (2,))
    image = bool(outputs.image_sizes)
    last = outputs.made_by("Gemm", "MatMul", "Add", "Conv", "GlobalAveragePool", "ReduceMean")
    return Head.CLASSES if imagenet and image and last else None


def _vectors(outputs: _Outputs) -> Head | None:
    """Recognise vectors of length 1, or that are named so."""
    long = outputs.are(lambda a: a.dtype.kind == "f" and a.shape[1] >= _SHORTEST_VECTOR, (2,))
    unit = long and outputs.are(
        lambda a: bool((np.abs(np.linalg.norm(a, axis=1) - 1) <= _ROUNDING).all() and a.min() < 0),
        (2,),
    )
    return Head.VECTORS if unit or (long and outputs.named("embed")) else None


def _shares(array: NDArray[Any], axis: int) -> bool:
    return bool(array.min() >= 0 and np.abs(array.sum(axis) - 1).max() <= _ROUNDING)
