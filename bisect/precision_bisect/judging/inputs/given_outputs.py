"""The reference from a file: outputs that something else computed from the same samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError, counted
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.judging.inputs.input_shapes import fits, show
from precision_bisect.protocols import Sample

_FLAG = "--reference"
_FIGURES, _TEXTS = "biuf", "OUS"
"""Kinds of numpy types that outputs may be stored in."""


def read_outputs(path: Path, model: Model, count: int) -> list[Sample]:
    """Return the outputs of so many samples, by name, in the order of the model's outputs.

    The file is as those that `read_samples` takes, or what `polygraphy run --save-outputs` writes
    of one runner. What is no output of the model is left out. Raises InputError for a file that
    cannot be read or is not of these samples.
    """
    samples = read_samples(path, [spec.name for spec in model.outputs])
    if len(samples) != count:
        raise InputError(
            f"{_FLAG} {path} holds the outputs of {counted(len(samples), 'sample')}, and --inputs "
            f"{count}",
            "give those of every sample, in the same order",
        )
    return [of_model(model, outputs, number) for number, outputs in enumerate(samples)]


def of_model(model: Model, outputs: Sample, number: int) -> Sample:
    """Return the outputs of one sample in the model's order, in the types of a reference.

    Raises InputError for outputs that are not the model's.
    """
    missing = [spec.name for spec in model.outputs if spec.name not in outputs]
    if missing:
        raise InputError(
            f"{_FLAG} lacks {', '.join(missing)} for sample {number}",
            f"the model's outputs are {', '.join(spec.name for spec in model.outputs)}",
        )
    return {spec.name: _as_computed(spec, outputs[spec.name], number) for spec in model.outputs}


def _as_computed(spec: TensorSpec, array: NDArray[Any], number: int) -> NDArray[Any]:
    """Return the array in the type that a reference has, FP32 for any float below."""
    wanted = np.dtype("float32" if spec.dtype in ("float16", "bfloat16", None) else spec.dtype)
    where = f"{_FLAG}: output {spec.name!r} of sample {number}"
    strange = array.dtype.kind not in (_TEXTS if wanted.kind == "O" else _FIGURES)
    if strange or (spec.dtype and (array.dtype.kind == "f") != (wanted.kind == "f")):
        has = spec.dtype or "figures"
        raise InputError(
            f"{where} is {array.dtype.name}, and the model has {has}",
            "give the outputs as the model computes them",
        )
    if not fits(spec, array.shape):
        raise InputError(
            f"{where} has the shape {show(array.shape)}, but the model has {show(spec.shape)}",
            "give the outputs of these samples, in their order, or mend the shape in the model",
        )
    if array.dtype.kind == "f":
        return array.astype(wanted)
    values = array if spec.dtype is None else array.astype(wanted)
    if not np.array_equal(values, array):
        raise InputError(
            f"{where} holds values that {spec.dtype} does not have",
            "give the outputs as the model computes them",
        )
    return values


def same_samples(apart: Sequence[tuple[str, float]], limit: float) -> str:
    """Return a remark where ONNX Runtime's own outputs are further apart than rounding, or ""."""
    name, share = max(apart, key=lambda item: item[1])
    if share <= limit:
        return ""
    return (
        f"{_FLAG} is far from what ONNX Runtime computes in FP32: output {name!r} of the first "
        f"sample differs by {share:.2g} of its largest value; check the order of the samples"
    )
