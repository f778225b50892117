"""What samples hold, in figures, and what is odd about it: wrong ranges, and values all alike."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import constant_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import InputRead, SamplesRead
from precision_bisect.settings.sample_options import RGB, ImageOptions

MOST_LOOKED_AT = 64
"""Samples whose values are looked at, at most: a bound, as reading them takes time."""
_BRIGHT = 32.0
"""Images of pixels from 0 to 255 reach more, scaled or normalised ones do not:
normalised by mean and deviation of ImageNet they reach 2.64."""
_SCALED = 10.0
"""Normalised pixels are within this distance of 0: (1 - 0.406) / 0.225 is 2.6."""
_WHITE = 255.0
_MEAN, _DIVISOR = 20.0, 20.0
"""Means of pixels are about 104 to 124, their standard deviations 57 to 58, and white is 255; of
pixels from 0 to 1 all are below 1."""
_PASSING = frozenset(
    (
        *("Cast", "Identity", "Transpose", "Unsqueeze", "Squeeze", "Reshape"),
        *("Slice", "Gather", "Split", "Concat", "Pad", "Resize"),
    )
)
"""Operators that change no pixel's scale."""


def figures(
    samples: Sequence[Sample], specs: Sequence[TensorSpec], path: str, images: ImageOptions | None
) -> SamplesRead:
    """Return what samples hold, by input; of many the first ones tell."""
    some = samples[:MOST_LOOKED_AT]
    return SamplesRead(
        path=path,
        samples=len(samples),
        looked_at=len(some),
        inputs=[_figures(spec.name, [sample[spec.name] for sample in some]) for spec in specs],
        images=images,
    )


def _figures(name: str, arrays: Sequence[NDArray[Any]]) -> InputRead:
    numbers = [array for array in arrays if array.dtype.kind in "biuf"]
    statistics: Mapping[str, float] = {}
    if len(numbers) == len(arrays):
        total = sum(float(array.sum(dtype=np.float64)) for array in arrays)
        statistics = {
            "lowest": min(float(array.min()) for array in arrays),
            "highest": max(float(array.max()) for array in arrays),
            "mean": total / sum(array.size for array in arrays),
        }
    return InputRead(
        name=name,
        dtype=arrays[0].dtype.name,
        shapes=list(dict.fromkeys(array.shape for array in arrays)),
        lowest=statistics.get("lowest"),
        highest=statistics.get("highest"),
        mean=statistics.get("mean"),
    )


def oddities(model: Model, samples: Sequence[Sample], read: SamplesRead) -> Iterator[str]:
    """Yield what is odd about the values of samples, and what to do."""
    first = samples[0]
    for entry, spec in zip(read.inputs, model.inputs, strict=True):
        if entry.lowest is None or entry.highest is None or not entry.dtype.startswith("float"):
            continue
        if entry.lowest == entry.highest:
            if first[entry.name].size > 1:
                yield (
                    f"input {entry.name!r} is {entry.lowest:g} throughout: what its layers do "
                    "with other values is not judged"
                )
        elif _takes_images(spec) or read.images is not None:
            yield from _scales(
                model,
                entry,
                entry.lowest,
                entry.highest,
                by_flags=bool(read.images),
            )


def _takes_images(spec: TensorSpec) -> bool:
    shape = spec.shape or ()
    return len(shape) in (3, 4) and not {1, RGB}.isdisjoint((shape[-1], shape[-3]))


def _scales(
    model: Model, read: InputRead, lowest: float, highest: float, *, by_flags: bool
) -> Iterator[str]:
    """Yield where the values of an image are not of the scale that the first layers take."""
    scaled_inside = _scales_pixels(model, read.name)
    range_ = f"input {read.name!r} has values from {lowest:.3g} to {highest:.3g}"
    if not scaled_inside and lowest >= 0 and _BRIGHT < highest <= _WHITE:
        how = (
            "give --scale 1/255, and --mean and --std as in training"
            if by_flags
            else "scale them as the code in use does"
        )
        yield (
            f"{range_}, as pixels have, and no first layer of the model scales them: most models "
            f"are trained on pixels from 0 to 1; if this one is, {how}"
        )
    if scaled_inside and max(-lowest, highest) <= _SCALED:
        how = "leave out --scale, --mean and --std" if by_flags else "give pixels as they are"
        yield (
            f"{range_}, and the first layers of the model scale pixels from 0 to 255: if it was "
            f"trained so, {how}"
        )


def _scales_pixels(model: Model, name: str) -> bool:
    """Tell whether the first arithmetic on an input divides by about 255, or subtracts means."""
    constants: dict[str, NDArray[Any]] = {**model.weights}
    for tensor in model.proto.graph.initializer:
        if tensor.name not in constants:
            constants[tensor.name] = onnx.numpy_helper.to_array(tensor)
    reached = {name}
    for node in model.proto.graph.node:
        constant = constant_of(node)
        if constant is not None:
            constants[node.output[0]] = constant
        if node.op_type in _PASSING and node.input and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
        if reached.isdisjoint(node.input):
            continue
        if node.op_type in _PASSING:
            reached.update(node.output)
        elif _fits_pixels(
            node, [constants[operand] for operand in node.input if operand in constants]
        ):
            return True
    return False


def _fits_pixels(node: onnx.NodeProto, constants: Sequence[NDArray[Any]]) -> bool:
    """Tell whether an operator's constants are of the size that pixels from 0 to 255 ask for."""
    sizes = [
        np.abs(constant.astype(np.float64))
        for constant in constants
        if constant.dtype.kind in "iuf"
    ]
    sizes = [size for size in sizes if size.size]
    if not sizes:
        return False
    if node.op_type == "BatchNormalization":
        return len(sizes) == 4 and bool(sizes[2].max() > _MEAN)
    typical = float(np.median(sizes[0]))
    match node.op_type:
        case "Div":
            return typical > _DIVISOR
        case "Mul":
            return 0 < typical < 1 / _DIVISOR
        case "Sub" | "Add":
            return typical > _MEAN
        case _:
            return False
