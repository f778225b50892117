"""Synthetic inputs that fit names, types and shapes. They may not reach the real ranges."""

import math
import re

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError, counted
from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_shapes import Shapes, concrete_shape
from precision_bisect.protocols import Sample

_FALLBACK_IDS = 100
# Bytes of all samples together, at most.
_MOST_BYTES = 2**31
_PASSING = frozenset(("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"))


def synthetic_samples(model: Model, shapes: Shapes, count: int, seed: int) -> list[Sample]:
    """Return `count` seeded samples.

    Floats are standard normal; token ids stay below the rows of the embedding that they index;
    masks are ones with zeros at the end in later samples; types and segments are zeros; positions
    count up. Raises InputError for a shape that is not known or a type that cannot be made up.
    """
    rng = np.random.default_rng(seed)
    rows = _rows_indexed(model)
    _refuse_too_large(model, shapes, count)
    return [
        {spec.name: _array(spec, shapes, rows.get(spec.name), rng, k) for spec in model.inputs}
        for k in range(count)
    ]


def _refuse_too_large(model: Model, shapes: Shapes, count: int) -> None:
    total = 0
    for spec in model.inputs:
        shape = concrete_shape(spec, shapes)
        itemsize = 1 if spec.dtype in (None, "bfloat16") else np.dtype(spec.dtype).itemsize
        total += count * itemsize * math.prod(shape)
        if total > _MOST_BYTES:
            raise InputError(
                f"input {spec.name!r} of shape {shape} is too large to make up: "
                f"{counted(count, 'sample')} may have {_MOST_BYTES} bytes together",
                "give --inputs",
            )


def _array(
    spec: TensorSpec, shapes: Shapes, rows: int | None, rng: np.random.Generator, sample: int
) -> NDArray[np.generic]:
    shape = concrete_shape(spec, shapes)
    if spec.dtype is None or spec.dtype == "bfloat16":
        raise InputError(f"input {spec.name!r} has a type that cannot be made up", "give --inputs")
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind not in "iub":
        raise InputError(f"input {spec.name!r} is no array of numbers", "give --inputs")
    return _integers(spec.name, shape, dtype, rows, rng, sample)


def _integers(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    rows: int | None,
    rng: np.random.Generator,
    sample: int,
) -> NDArray[np.generic]:
    lower = name.lower()
    if "mask" in lower or dtype.kind == "b":
        mask = np.ones(shape, dtype)
        if shape and shape[-1] > 1:
            mask[..., shape[-1] - shape[-1] * (sample % 4) // 8 :] = 0
        return mask
    if re.search(r"type|segment", lower):
        return np.zeros(shape, dtype)
    if re.search(r"position|pos_ids", lower) and shape:
        count = np.arange(shape[-1]) % (rows or shape[-1])
        return np.broadcast_to(count.astype(dtype), shape).copy()
    return rng.integers(0, rows or _FALLBACK_IDS, shape).astype(dtype)


def _rows_indexed(model: Model) -> dict[str, int]:
    """Return, per input that indexes a constant table by Gather, the table's number of rows."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
    names = {spec.name for spec in model.inputs}
    same: dict[str, str] = {}
    rows_by_input: dict[str, int] = {}
    for node in model.proto.graph.node:
        value = attribute(node, "value")
        if node.op_type == "Constant" and value is not None:
            tables[node.output[0]] = tuple(value.t.dims)
        if node.op_type in _PASSING and node.input and node.output:
            same[node.output[0]] = same.get(node.input[0], node.input[0])
            if node.input[0] in tables and node.op_type in ("Cast", "Identity"):
                tables[node.output[0]] = tables[node.input[0]]
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[0] in tables:
            index = same.get(node.input[1], node.input[1])
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            dims = tables[node.input[0]]
            if index in names and -len(dims) <= axis < len(dims):
                # Indices have to fit the smallest table that they are looked up in.
                rows_by_input[index] = min(dims[axis], rows_by_input.get(index, dims[axis]))
    return rows_by_input
