"""The strings by which trtexec (TensorRT 8.6 to 10.x) is told of the layers that stay high.

trtexec sets what a name says on TensorRT's layer of exactly that name, whatever the layer is
(NVIDIA/TensorRT, samples/common/sampleEngines.cpp, 10.x).
"""

import onnx

from precision_bisect.exports.export import Export, nodes_in_tensorrt
from precision_bisect.exports.layer_precisions import (
    LONGEST_ARGUMENT,
    UNWRITABLE,
    NotWritable,
    write_layer_precisions,
)
from precision_bisect.layer_table import Exclusion, Layer

PRECISIONS = "--layerPrecisions="
OUTPUT_TYPES = "--layerOutputTypes="
_NAMED_ELSEWHERE = frozenset(("EyeLike", "Hardmax", "Shrink", "Trilu", "Upsample"))
"""Operators whose own name TensorRT's parser gives to a layer of integers, or to none."""
_NAMELESS_INSIDE = frozenset(("GRU", "GlobalLpPool", "LSTM", "Mod", "RNN"))
"""Operators that TensorRT's parser builds partly of layers with neither name nor metadata."""
_NEVER_TOLD = (Exclusion.SHAPE, Exclusion.CONTROL_FLOW, Exclusion.NOT_TENSOR)
"""Nodes on whose layers a type would be an error, or that have no layer of their name."""


def layer_precisions(export: Export) -> str:
    """Return the value of `--layerPrecisions`: the type of each node above the lowest.

    It selects these nodes and no other. Raises NotWritable where there is no such value.
    """
    wanted = trtexec_nodes(export)
    elsewhere = frozenset(export.names_elsewhere())
    for name in wanted:
        if name in elsewhere:
            raise NotWritable(f"something else in the model is called {name!r}, too")
        if export.quantized and not UNWRITABLE.isdisjoint(name):
            raise NotWritable(
                f"{name!r} needs a pattern, which could match what quantization adds to the model"
            )
    layers = (layer.name for layer in export.model.table.layers)
    return write_layer_precisions(wanted, (elsewhere | {*layers}) - wanted.keys())


def layer_output_types(export: Export) -> str:
    """Return the value of `--layerOutputTypes`: the type of the outputs of the same nodes.

    The one type counts for all outputs of a layer, so layers that put out integers, too, are left
    out: TopK's indices are INT32 or INT64 by TensorRT's version. Names are exact: with a wildcard
    trtexec 10.0 to 10.16 sets another type than the one that is written. Empty where no layer is
    left. Raises NotWritable for names that trtexec cannot read.
    """
    outputs = {str(layer.name): layer.outputs for layer in export.model.table.layers}
    wanted = {
        name: kind
        for name, kind in trtexec_nodes(export).items()
        if {export.model.elem_types.get(out) for out in outputs[name]} == {onnx.TensorProto.FLOAT}
    }
    for name in wanted:
        if "," in name or "'" in name:
            raise NotWritable(f"{OUTPUT_TYPES[:-1]} cannot hold the name {name!r}")
    spec = ",".join(f"{name}:{kind}" for name, kind in wanted.items())
    if len((OUTPUT_TYPES + spec).encode()) > LONGEST_ARGUMENT:
        raise NotWritable("the string is longer than Linux allows for one argument (128 KiB)")
    return spec


def trtexec_nodes(export: Export) -> dict[str, str]:
    """Return the type of each node of which trtexec is told, if any. Raises NotWritable."""
    found: dict[str, str] = {}
    nodes, decided = nodes_in_tensorrt(export), {layer.name for layer in export.high_layers}
    for layer in export.model.table.layers:
        if layer.name not in nodes or layer.exclusion in _NEVER_TOLD:
            continue
        trouble = _trouble(layer)
        if trouble and layer.name in decided:
            raise NotWritable(f"TensorRT builds {layer.name!r} ({layer.op_type}) {trouble}")
        if not trouble:
            found[layer.name] = nodes[layer.name].precision
    return found


def _trouble(layer: Layer) -> str:
    """Return why the layer's name does not lead to what computes it, "" where it does."""
    if layer.op_type in _NAMED_ELSEWHERE:
        return "of several layers, and the one of that name computes no floats"
    return "of layers without a name" if layer.op_type in _NAMELESS_INSIDE else ""
