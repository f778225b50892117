"""Weak typing: TensorRT layers marked with the precision of the ONNX node they come from.

The parser writes the node into the metadata of each layer that it makes. Layer names do not tell:
a node can become several layers, and layers with equal names are renamed. A node inside a subgraph
is written with the names of the nodes around it, so it never looks like a node of the main graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from precision_bisect.inspection.engine_layers import onnx_nodes

NEVER_MARKED = (
    *("CONSTANT", "SHAPE", "IDENTITY", "CAST", "QUANTIZE", "DEQUANTIZE", "DYNAMIC_QUANTIZE"),
    *("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT"),
    *("ITERATOR", "TRIP_LIMIT", "RECURRENCE", "LOOP_OUTPUT", "ASSERTION"),
    *("PLUGIN", "PLUGIN_V2", "PLUGIN_V3"),
    # New in 10.16: the borders of a fused attention, a cache that shares its memory, traffic
    # between GPUs, and experts that have types of their own.
    *("ATTENTION_INPUT", "ATTENTION_OUTPUT", "KV_CACHE_UPDATE", "DIST_COLLECTIVE", "MOE"),
)
"""Layers whose type is their meaning, that steer control flow, or that are not TensorRT's own."""
_FLOATS = ("FLOAT", "HALF", "BF16")


def layers_of(network: Any) -> dict[str, list[Any]]:
    """Return the network's layers by the name of the ONNX node that they come from, in order.

    Helper layers that the parser adds carry no metadata and are left out. Metadata exists since
    TensorRT 8.6.
    """
    found: dict[str, list[Any]] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for name in onnx_nodes(layer.metadata) if layer.metadata else ():
            found.setdefault(name, []).append(layer)
    return found


def to_mark(
    layers: Mapping[str, Sequence[Any]], names: Iterable[str], trt: ModuleType
) -> list[Any]:
    """Return the layers of the named nodes that can be marked: those that compute floats.

    A mark on a layer of integers, of shapes or of control flow would fail the build.
    """
    known = trt.LayerType.__members__
    never = {known[name] for name in NEVER_MARKED if name in known}
    return [
        layer
        for name in names
        for layer in layers.get(name, ())
        if layer.type not in never and _computes_floats(layer)
    ]


def mark_high(layers: Iterable[Any], trt: ModuleType) -> None:
    """Ask for FP32 inside these layers and at each of their floating-point outputs."""
    for layer in layers:
        # Both: without an output type the builder may still hand the result on in FP16.
        layer.precision = trt.float32
        for index in range(layer.num_outputs):
            if _is_float(layer.get_output(index)):
                layer.set_output_type(index, trt.float32)


def _computes_floats(layer: Any) -> bool:
    tensors = [layer.get_output(index) for index in range(layer.num_outputs)]
    shapes = any(tensor.is_shape_tensor for tensor in tensors)
    return not shapes and any(_is_float(tensor) for tensor in tensors)


def _is_float(tensor: Any) -> bool:
    return tensor.dtype.name in _FLOATS
