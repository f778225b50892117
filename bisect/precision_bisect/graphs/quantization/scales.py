"""The scales of a quantized model, as explicit quantization in TensorRT uses them.

All are symmetric: the zero point is 0. Activations have one scale per tensor, weights one per
output channel. A value v is stored as round(v / scale), to nearest even, within the range of the
type (`lowtypes.QUANTIZED`), bit for bit as ONNX's QuantizeLinear does. A run leaves its scales in
`scales.json`, so that it can be exported and built again when it is finished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from onnx import TensorProto

from precision_bisect.errors import RunFolderError
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import QuantizedType
from precision_bisect.precisions import QuantizedName
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import SCALES, RunFolder
from precision_bisect.runs.typed_json import Count, read_typed

# Larger ones are no FP32.
_Scale: TypeAlias = Annotated[float, Meta(gt=0, lt=1e39)]
_AGAIN = "run the search again, which calibrates again"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightScale:
    """The scales of one weight, all positive.

    `values` is FP32 of shape (channels,) along `axis`, or of shape () where `axis` is None: one
    scale for the whole tensor.
    """

    axis: int | None
    values: NDArray[np.float32]

    def along(self, rank: int) -> NDArray[np.float32]:
        """Return the scales in a shape that broadcasts against the weight of that rank."""
        if self.axis is None:
            return self.values
        shape = [1] * rank
        shape[self.axis] = -1
        return self.values.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scales:
    """The scales of activations by tensor name, and of weights by their tensor's name.

    Both have an entry for every tensor that a candidate or a layer fixed to a quantized type would
    read quantized.
    """

    activations: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, WeightScale] = field(default_factory=dict)


def quantized(
    weight: NDArray[np.float32], scale: WeightScale, kind: QuantizedType
) -> NDArray[np.generic]:
    """Return the stored form of a weight: of its shape, of the quantized type's numpy type."""
    values = weight.astype(np.float32, copy=False)
    # Weights are symmetric: -128 is left out.
    return kind.store(_scaled(values, scale.along(weight.ndim)), -kind.largest)


def dequantized(stored: NDArray[np.generic], scale: WeightScale) -> NDArray[np.float32]:
    """Return the FP32 values of a stored weight, in its shape."""
    values: NDArray[np.float32] = stored.astype(np.float32) * scale.along(stored.ndim)
    return values


def fake_quantized(
    values: NDArray[np.float32], scale: NDArray[np.float32] | np.float32, kind: QuantizedType
) -> NDArray[np.float32]:
    """Return activations after a round trip through Q/DQ, in their shape.

    `scale` broadcasts against them.
    """
    stored = kind.store(_scaled(values, scale), kind.smallest)
    rounded: NDArray[np.float32] = stored.astype(np.float32) * scale
    return rounded


def _scaled(
    values: NDArray[np.float32], scale: NDArray[np.float32] | np.float32
) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        scaled: NDArray[np.float32] = values / scale
    return scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    axis: Count | None
    values: Annotated[Sequence[_Scale], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.axis is None and len(self.values) > 1:
            raise ValueError(f"{len(self.values)} scales are along no axis")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    activations: Mapping[str, _Scale]
    weights: Mapping[str, _Weight]


def write_scales(folder: RunFolder, scales: Scales) -> None:
    """Write the scales into the run folder. Raises RunFolderError where it cannot be written.

    {"activations": {"x": 0.03125}, "weights": {"w": {"axis": 0, "values": [0.001, 0.002]}}}

    Values are FP32 and come back bit for bit. A weight whose `axis` is null has one value.
    """
    contents = _Contents(
        activations=scales.activations,
        weights={
            name: _Weight(axis=scale.axis, values=scale.values.reshape(-1).tolist())
            for name, scale in scales.weights.items()
        },
    )
    folder.write(SCALES, plain_json.dumps(contents) + "\n")


def read_scales(folder: Path) -> Scales:
    """Return the scales that a run has left in its folder.

    Raises RunFolderError where there are none, or the file does not hold scales.
    """
    file = folder / SCALES
    try:
        contents = read_typed(_Contents, file)
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}", _AGAIN) from error
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: it holds no scales ({error})", _AGAIN) from error
    return Scales(
        activations=dict(contents.activations),
        weights={name: _weight(weight) for name, weight in contents.weights.items()},
    )


def _weight(weight: _Weight) -> WeightScale:
    # One scale for the whole tensor has the shape (), not (1,).
    values = np.array(weight.values[0] if weight.axis is None else weight.values, np.float32)
    return WeightScale(axis=weight.axis, values=values)


_TYPES: dict[int, QuantizedName] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "int8",
    TensorProto.FLOAT8E4M3FN: "fp8",
    TensorProto.FLOAT8E5M2: "fp8",
}


def quantized_in_file(model: Model) -> tuple[QuantizedName, ...]:
    """Return the types that weakly typed builds must be allowed for it, bodies included."""
    kinds = set()
    for graph in all_graphs(model.proto.graph):
        for node in graph.node:
            if node.op_type == "QuantizeLinear":
                kinds.add(model.elem_types.get(node.output[0], 0))
            elif node.op_type == "DequantizeLinear":
                kinds.add(model.elem_types.get(node.input[0], 0))
    names = {_TYPES[kind] for kind in kinds if kind in _TYPES}
    return tuple(sorted(names))
