"""The lowest TensorRT whose parser takes what a model has."""

from typing import TypeAlias

from precision_bisect.exports.export import Export
from precision_bisect.graphs.graph import operators, opset
from precision_bisect.graphs.lowtypes import LOW_TYPES

_SINCE = {
    **dict.fromkeys(("CastLike", "Gelu", "Hardmax", "Mish"), (10, 0)),
    "DeformConv": (10, 1),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (10, 4)),
    "STFT": (10, 5),
    "Attention": (10, 14),
    **dict.fromkeys(("RMSNormalization", "RotaryEmbedding", "TensorScatter"), (10, 15)),
    "Swish": (11, 0),
}
"""Operators that TensorRT 8.6 does not take, each with the first version of 10 or 11 that does.

Up to 10.10 the importers in onnxOpImporters.cpp (builtin_op_importers.cpp in 8.6) of
github.com/onnx/onnx-tensorrt, compared by release; from 10.11 on CHANGELOG.md of
github.com/NVIDIA/TensorRT, as of 11.1.
"""
_GROUP_NORM_OPSET = 21
_GROUP_NORM_SINCE = (10, 9)
"""The first version that takes GroupNormalization as of that opset (CHANGELOG.md)."""
_LOW_GRU_SINCE = (10, 2)
"""The first version whose GRU may be FP16: before, one minus a gate has an FP32 one."""


Version: TypeAlias = tuple[int, int]


def lowest(export: Export, base: Version, *, typed: bool) -> str:
    """Return the version that takes the model, where that is above `base`, else "".

    `typed` tells whether the types are those of the typed model; otherwise all are FP32.
    """
    major, minor = max((base, *_needed(export, typed=typed).values()))
    return f", {major}.{minor} or later" if (major, minor) > base else ""


def since(export: Export) -> str:
    """Return from which version on TensorRT takes each newer operator, in a sentence, or ""."""
    needed = sorted(_needed(export, typed=True).items(), key=lambda each: (each[1], each[0]))
    told = [f"{what} from {major}.{minor}" for what, (major, minor) in needed]
    return f"TensorRT takes {', '.join(told)} on." if told else ""


def _needed(export: Export, *, typed: bool) -> dict[str, Version]:
    proto = export.model.proto
    used = operators(proto.graph)
    found = {op_type: version for op_type, version in _SINCE.items() if op_type in used}
    if "GroupNormalization" in used and opset(proto) >= _GROUP_NORM_OPSET:
        found[f"GroupNormalization of opset {_GROUP_NORM_OPSET}"] = _GROUP_NORM_SINCE
    low = (
        layer.op_type
        for layer in export.model.table.layers
        if export.precisions.get(layer.name) in LOW_TYPES
    )
    if typed and "GRU" in low:
        found["GRU below FP32"] = _LOW_GRU_SINCE
    return found
