"""Checks that samples fit the model, before anything runs, and what is odd about their values."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import InputError
from precision_bisect.graphs.fp32_outputs import not_finite
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import BF16
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_shapes import fits, show
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import InputRead, SamplesRead
from precision_bisect.settings.sample_options import RGB, ImageOptions

_SCALED = "scale pixels to the range that the model was trained on, and convert them"


def check_samples(model: Model, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples as the session wants them: contiguous, in the inputs' order.

    Raises InputError for missing or unknown names, wrong types or shapes, and arrays that hold
    nothing.
    """
    return [_check(model.inputs, sample, f"sample {n}") for n, sample in enumerate(samples)]


def own_sample(sample: object) -> Any:
    """Return a sample with arrays of its own: loaders may fill one buffer again and again.

    What is no dict, and what numpy makes no array of, stays for the checks to refuse.
    """
    if not isinstance(sample, Mapping):
        return _own(sample) if hasattr(sample, "shape") else sample
    return {name: _own(value) for name, value in sample.items()}


def _own(value: object) -> object:
    # Polygraphy's wrappers have to be asked for their arrays.
    if hasattr(value, "load"):
        return value
    try:
        return np.array(value)
    except Exception:  # foreign array types raise what they like
        return value


class CheckedSamples(Sequence[Sample]):
    """Samples by where they lie, as `check_samples` returns them, each when it is asked for.

    Inputs that a loop has `fed` may begin with nothing in them, as a cache does.
    """

    def __init__(
        self, model: Model, placed: Mapping[str, Sample], fed: Collection[str] = ()
    ) -> None:
        self._specs = model.inputs
        self._fed = fed
        self._placed = placed
        self._places = list(placed)

    def __len__(self) -> int:
        return len(self._places)

    def place(self, number: int) -> str:
        """Return where a sample lies, in words."""
        return self._places[number]

    @overload
    def __getitem__(self, which: int) -> Sample: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Sample]: ...
    def __getitem__(self, which: int | slice) -> "Sample | Sequence[Sample]":
        """Return a sample, read and checked. Raises InputError as `check_samples` does."""
        if isinstance(which, slice):
            return [self[number] for number in range(*which.indices(len(self)))]
        place = self._places[which]
        return _check(self._specs, self._placed[place], place, self._fed)


def _check(
    specs: Sequence[TensorSpec], sample: Sample, place: str, fed: Collection[str] = ()
) -> Sample:
    # Python callers give what they like.
    if len(specs) == 1 and hasattr(sample, "shape"):
        sample = {specs[0].name: np.asarray(sample)}
    if not isinstance(sample, Mapping):
        raise InputError(
            f"{place} is no dict but {type(sample).__name__}",
            "each sample is a dict from input name to array",
        )
    wanted = {spec.name: spec for spec in specs}
    names = ", ".join(wanted) or "none"
    if missing := [name for name in wanted if name not in sample]:
        raise InputError(f"{place} lacks {', '.join(missing)}", f"the model's inputs are {names}")
    # A misspelt optional input would otherwise be ignored in silence.
    if unknown := [name for name in sample if name not in wanted]:
        raise InputError(
            f"{place} has {', '.join(map(str, unknown))}, no input of the model",
            f"leave out all but its inputs, {names}",
        )
    return {
        name: _check_array(spec, _native(sample[name]), place, may_be_empty=name in fed)
        for name, spec in wanted.items()
    }


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in this machine's byte order, and text as ONNX Runtime takes it."""
    array = np.asarray(array)
    if array.dtype.kind in "SU":
        return array.astype(object)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_array(
    spec: TensorSpec, array: NDArray[Any], place: str, *, may_be_empty: bool
) -> NDArray[Any]:
    where = f"input {spec.name!r} of {place}"
    # numpy's own files have no BF16, so samples for it may come in FP32.
    takes = "float32" if spec.dtype == BF16.numpy_type.name else spec.dtype
    if takes != spec.dtype and array.dtype.name == takes:
        array = BF16.round(array)
    elif spec.dtype is not None and array.dtype.name != spec.dtype:
        pixels = array.dtype == np.uint8 and spec.dtype.startswith("float")
        raise InputError(
            f"{where} is {array.dtype.name}, but the model wants {spec.dtype}",
            f"{_SCALED if pixels else 'convert it'} with .astype('{takes}')",
        )
    if not fits(spec, array.shape):
        raise InputError(
            f"{where} has the shape {show(array.shape)}, but the model wants {show(spec.shape)}",
            "give each sample by itself"
            if array.ndim and fits(spec, (1, *array.shape[1:]))
            else "give samples of the shape that the model was exported for",
        )
    if array.size == 0 and not may_be_empty:
        raise InputError(
            f"{where} has the shape {show(array.shape)}, which holds nothing",
            "give samples with values: some operators end the process on none",
        )
    if spec.dtype in ("float16", "bfloat16"):
        array = array.astype(np.float32)
    return np.ascontiguousarray(array) if array.ndim else array


MOST_LOOKED_AT = 64
"""Samples whose values are looked at, at most: a bound, as reading them takes time."""
# Images of pixels from 0 to 255 reach more, scaled or normalised ones do not: normalised by mean
# and deviation of ImageNet they reach 2.64.
_BRIGHT = 32.0
# Normalised pixels are within this distance of 0: (1 - 0.406) / 0.225 is 2.6.
_NORMALISED = 10.0
_WHITE = 255.0
_MEAN, _DIVISOR = 20.0, 20.0
"""Means of pixels are about 104 to 124, their standard deviations 57 to 58, and white is 255; of
pixels from 0 to 1 all are below 1."""
# Operators that change no pixel's scale.
_PASSING = frozenset(
    (
        *("Cast", "Identity", "Transpose", "Unsqueeze", "Squeeze", "Reshape"),
        *("Slice", "Gather", "Split", "Concat", "Pad", "Resize"),
    )
)
_SCALING = frozenset(("BatchNormalization", "Div", "Mul", "Sub", "Add"))


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
    statistics: Mapping[str, float] = {}
    numbers = all(array.dtype.kind in "biuf" for array in arrays)
    # A cache begins with nothing, and a mask may hold -inf.
    finite = (array[np.isfinite(array)] for array in arrays if numbers)
    if filled := [array for array in finite if array.size]:
        # In FP64, as sums of FP16 arrays overflow, and those of integers wrap around.
        total = sum(float(array.sum(dtype=np.float64)) for array in filled)
        statistics = {
            "lowest": min(float(array.min()) for array in filled),
            "highest": max(float(array.max()) for array in filled),
            "mean": total / sum(array.size for array in filled),
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
        if "mask" in entry.name.lower():
            yield from _alike(entry, [sample[entry.name] for sample in samples[: read.looked_at]])
        if entry.lowest is None or entry.highest is None or not entry.dtype.startswith("float"):
            continue
        arrays = (sample[entry.name] for sample in samples[: read.looked_at])
        if share := next(filter(None, map(not_finite, arrays)), ""):
            yield (
                f"input {entry.name!r} has {share}: check how it was made, unless the model is "
                "to take that"
            )
        elif entry.lowest == entry.highest:
            if first[entry.name].size > 1:
                yield (
                    f"input {entry.name!r} is {entry.lowest:g} throughout: what its layers do "
                    "with other values is not judged"
                )
        elif _takes_images(spec) or read.images is not None:
            yield from _scales(
                model, entry, entry.lowest, entry.highest, by_flags=bool(read.images)
            )


def _alike(entry: InputRead, masks: Sequence[NDArray[Any]]) -> Iterator[str]:
    """Yield that all rows of masks of 0 and 1 are equal: what padding changes shows in none."""
    if not all(mask.ndim > 1 and np.isin(mask, (0, 1)).all() for mask in masks):
        return
    if entry.lowest == 1:
        how = "hides nothing in any sample"
    elif len({row.tobytes() for mask in masks for row in mask}) == 1:
        how = "is the same in all samples"
    else:
        return
    yield (
        f"input {entry.name!r} {how}: give padded and unpadded samples, for a plan may fail on "
        "one kind alone"
    )


def _takes_images(spec: TensorSpec) -> bool:
    shape = spec.shape or ()
    return len(shape) in (3, 4) and not {1, RGB}.isdisjoint((shape[-1], shape[-3]))


def refuse_raw_pixels(model: Model, read: SamplesRead) -> None:
    """Raise InputError for pixels of images from 0 to 255 that no first layer scales."""
    for entry in read.inputs:
        if _unscaled(model, entry):
            raise InputError(
                f"{_range(entry)}, as pixels have, and no first layer of the model scales them",
                "give --normalize imagenet (or unit: 0 to 1) as in training, or --scale 1 if it "
                "takes them as they are",
            )


def _unscaled(model: Model, read: InputRead) -> bool:
    lowest, highest = read.lowest or 0.0, read.highest or 0.0
    bright = lowest >= 0 and _BRIGHT < highest <= _WHITE
    return bright and read.dtype.startswith("float") and not _scales_pixels(model, read.name)


def _range(read: InputRead) -> str:
    return f"input {read.name!r} has values from {read.lowest:.3g} to {read.highest:.3g}"


def _scales(
    model: Model, read: InputRead, lowest: float, highest: float, *, by_flags: bool
) -> Iterator[str]:
    """Yield where the values of an image are not of the scale that the first layers take."""
    if not by_flags and _unscaled(model, read):
        yield (
            f"{_range(read)}, as pixels have, and no first layer of the model scales them: most "
            "models are trained on pixels from 0 to 1; if this one is, scale them as the code in "
            "use does"
        )
    elif max(-lowest, highest) <= _NORMALISED and _scales_pixels(model, read.name):
        how = "leave out --scale, --mean and --std" if by_flags else "give pixels as they are"
        yield (
            f"{_range(read)}, and the first layers of the model scale pixels from 0 to 255: if it "
            f"was trained so, {how}"
        )


def _scales_pixels(model: Model, name: str) -> bool:
    """Tell whether the first arithmetic on an input divides by about 255, or subtracts means."""
    view, reached = View(model), {name}

    def constant(operand: str) -> NDArray[Any] | None:
        while (array := view.array(operand)) is None:
            moved = view.made_by(operand, *_PASSING)
            if moved is None or not moved.input:
                return None
            operand = moved.input[0]
        return array

    # Only as far as the first arithmetic: what comes later scales features, not pixels.
    for node in view.nodes:
        if reached.isdisjoint(node.input):
            continue
        if node.op_type in _PASSING:
            reached.update(node.output)
        elif node.op_type in _SCALING:
            arrays = (constant(operand) for operand in node.input if operand not in reached)
            if _fits_pixels(node, [array for array in arrays if array is not None]):
                return True
    return False


def _fits_pixels(node: onnx.NodeProto, constants: Sequence[NDArray[Any]]) -> bool:
    """Tell whether the constants of one that scales are of the size that pixels to 255 ask for."""
    sizes = [
        np.abs(constant.astype(np.float64))
        for constant in constants
        if constant.dtype.kind in "iuf" and constant.size
    ]
    if not sizes:
        return False
    # Scale, bias, mean and variance: the mean is that of the pixels where it comes first.
    if node.op_type == "BatchNormalization":
        return len(sizes) == 4 and bool(sizes[2].max() > _MEAN)
    typical = float(np.median(sizes[0]))
    if node.op_type == "Div":
        return typical > _DIVISOR
    return 0 < typical < 1 / _DIVISOR if node.op_type == "Mul" else typical > _MEAN
