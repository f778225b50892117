"""The strings by which trtexec (TensorRT 8.6 to 10.x) is told of the layers that stay high.

trtexec sets what a name says on TensorRT's layer of exactly that name, whatever the layer is
(NVIDIA/TensorRT, samples/common/sampleEngines.cpp, 10.x).
"""

import onnx

from precision_bisect.exports.export import Export, layers_in_tensorrt
from precision_bisect.exports.layer_precisions import (
    LONGEST_ARGUMENT,
    UNWRITABLE,
    NotWritable,
    write_layer_precisions,
)
from precision_bisect.layer_table import Layer

PRECISIONS = "--layerPrecisions="
OUTPUT_TYPES = "--layerOutputTypes="
_NAMED_ELSEWHERE = frozenset(("Hardmax", "Shrink", "Trilu", "Upsample"))
"""Operators whose own name TensorRT's parser gives to a layer of integers, or to none."""


def layer_precisions(export: Export) -> str:
    """Return the value of `--layerPrecisions`: the type of each layer above the lowest.

    It selects these layers and no other. Raises NotWritable where there is no such value.
    """
    wanted = layers_in_tensorrt(export)
    for layer in export.high_layers:
        if layer.op_type in _NAMED_ELSEWHERE:
            raise NotWritable(
                f"TensorRT builds {layer.name!r} ({layer.op_type}) of several layers, and the one "
                "of that name computes no floats"
            )
    others = list(export.other_names())
    inner = frozenset(others)
    for name in wanted:
        if name in inner:
            raise NotWritable(f"something else in the model is called {name!r}, too")
        if export.quantized and not UNWRITABLE.isdisjoint(name):
            raise NotWritable(
                f"{name!r} needs a pattern, which could match what quantization adds to the model"
            )
    return write_layer_precisions(wanted, others)


def layer_output_types(export: Export) -> str:
    """Return the value of `--layerOutputTypes`: the type of the outputs of the same layers.

    The one type counts for all outputs of a layer, so layers that put out integers, too, are left
    out: TopK's indices are INT32 or INT64 by TensorRT's version. Names are exact: with a wildcard
    trtexec 10.0 to 10.16 sets another type than the one that is written. Empty where no layer is
    left. Raises NotWritable for names that trtexec cannot read.
    """
    names = [layer.name for layer in export.high_layers if _all_float(export, layer)]
    for name in names:
        if "," in name or "'" in name:
            raise NotWritable(f"{OUTPUT_TYPES[:-1]} cannot hold the name {name!r}")
    spec = ",".join(f"{name}:{export.precisions[name]}" for name in names)
    if len((OUTPUT_TYPES + spec).encode()) > LONGEST_ARGUMENT:
        raise NotWritable("the string is longer than Linux allows for one argument (128 KiB)")
    return spec


def _all_float(export: Export, layer: Layer) -> bool:
    types = {export.model.elem_types.get(output) for output in layer.outputs}
    return types == {onnx.TensorProto.FLOAT}
