"""Checks that samples fit the model, before anything runs."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import BF16
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_shapes import fits, show
from precision_bisect.protocols import Sample

_SCALED = "scale pixels to the range that the model was trained on, and convert them"


def check_samples(
    model: Model, samples: Sequence[Sample], places: Sequence[str] = ()
) -> list[Sample]:
    """Return the samples as the session wants them: contiguous, in the inputs' order.

    `places` say where each lies. Raises InputError for missing or unknown names, wrong types or
    shapes, arrays that hold nothing, and NaN or Inf.
    """
    named = places or [f"sample {number}" for number in range(len(samples))]
    return [_check(model.inputs, *item) for item in zip(samples, named, strict=True)]


def own_sample(sample: object) -> Any:
    """Return a sample with arrays of its own: loaders may fill one buffer again and again.

    What is no dict, and what numpy makes no array of, stays for the checks to refuse.
    """
    if not isinstance(sample, Mapping):
        return sample
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
    """Samples by where they lie, as `check_samples` returns them, each when it is asked for."""

    def __init__(self, model: Model, placed: Mapping[str, Sample]) -> None:
        self._specs = model.inputs
        self._placed = placed
        self._places = list(placed)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, which: int) -> Sample: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Sample]: ...
    def __getitem__(self, which: int | slice) -> "Sample | Sequence[Sample]":
        """Return a sample, read and checked. Raises InputError as `check_samples` does."""
        if isinstance(which, slice):
            return [self[number] for number in range(*which.indices(len(self)))]
        place = self._places[which]
        return _check(self._specs, self._placed[place], place)


def _check(specs: Sequence[TensorSpec], sample: Sample, place: str) -> Sample:
    # Python callers give what they like.
    if not isinstance(sample, Mapping):
        raise InputError(
            f"{place} is no dict but {type(sample).__name__}",
            "each sample is a dict from input name to array",
        )
    wanted = {spec.name: spec for spec in specs}
    names = ", ".join(wanted) or "none"
    if missing := [name for name in wanted if name not in sample]:
        raise InputError(f"{place} lacks {', '.join(missing)}", f"the model's inputs are {names}")
    if unknown := [name for name in sample if name not in wanted]:
        raise InputError(
            f"{place} has {', '.join(map(str, unknown))}, no input of the model",
            f"leave out all but its inputs, {names}",
        )
    return {
        name: _check_array(spec, _native(sample[name]), place) for name, spec in wanted.items()
    }


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in this machine's byte order, and text as ONNX Runtime takes it."""
    array = np.asarray(array)
    if array.dtype.kind in "SU":
        return array.astype(object)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_array(spec: TensorSpec, array: NDArray[Any], place: str) -> NDArray[Any]:
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
    if array.size == 0:
        raise InputError(
            f"{where} has the shape {show(array.shape)}, which holds nothing",
            "give samples with values: some operators end the process on none",
        )
    if spec.dtype in ("float16", "bfloat16"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{where} has NaN or Inf in it", "check how it was made")
    return np.ascontiguousarray(array) if array.ndim else array
