"""The lowest TensorRT whose parser takes what a model has."""

from collections.abc import Iterator

from precision_bisect.exports.export import Export
from precision_bisect.model.graph import operators, opset
from precision_bisect.model.lowtypes import LOW_TYPES

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


def needs(export: Export, base: tuple[int, int], *, typed: bool) -> str:
    """Return the version above `base` that the model needs, and for what; "" for none.

    `typed` tells whether the types are those of the typed model, else all are FP32.
    """
    found = max(_needed(export, typed=typed), default=(base, ""))
    (major, minor), what = found
    return f", {major}.{minor} or later for {what}" if found[0] > base else ""


def _needed(export: Export, *, typed: bool) -> Iterator[tuple[tuple[int, int], str]]:
    proto = export.model.proto
    for op_type in operators(proto.graph):
        if op_type in _SINCE:
            yield _SINCE[op_type], op_type
        if op_type == "GroupNormalization" and opset(proto) >= _GROUP_NORM_OPSET:
            yield _GROUP_NORM_SINCE, op_type
    if typed and any(
        layer.op_type == "GRU" and export.precisions.get(layer.name) in LOW_TYPES
        for layer in export.model.table.layers
    ):
        yield _LOW_GRU_SINCE, "GRU below FP32"
