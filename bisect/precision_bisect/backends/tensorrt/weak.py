"""Weak typing: the layers of a TensorRT network that a plan marks, and how they are marked.

The exported script has this file's body, so that what is deployed is what was judged: nothing but
the standard library is used here, in what Python 3.8 knows.

The parser (onnx-tensorrt, 8.6 to 10.x) writes a node into the metadata of each layer that it
registers. It leaves out helpers, both products of an LSTM, up to 10.6 the sum and the factors of a
Gemm, and others. It names the tensors that nodes exchange as the model does. So a layer without
metadata belongs to the node whose output it computes, or else to the nodes that read what it
computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ONNX_LAYER_PREFIX = "[ONNX Layer: "
TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16"}
"""TensorRT's names of types."""
LEFT_ALONE = (
    "ASSERTION",
    "ATTENTION_INPUT",
    "ATTENTION_OUTPUT",
    "CAST",
    "CONDITION",
    "CONDITIONAL_INPUT",
    "CONDITIONAL_OUTPUT",
    "DEQUANTIZE",
    "DIST_COLLECTIVE",
    "DYNAMIC_QUANTIZE",
    "ITERATOR",
    "KV_CACHE_UPDATE",
    "LOOP_OUTPUT",
    "MOE",
    "PLUGIN",
    "PLUGIN_V2",
    "PLUGIN_V3",
    "QUANTIZE",
    "RECURRENCE",
    "SHAPE",
    "TRIP_LIMIT",
)
"""Kinds of layers whose type is their meaning, that compute nothing or are not TensorRT's own."""


def to_mark(network: Any, high: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the layers to mark for each of these nodes, in network order.

    `high` has for the name of each node that stays high its type, and the names of the tensors
    that it reads and writes, without constants. A constant is marked if all that read it are.
    """
    origins = Origins(network, high)
    marked: dict[str, list[Any]] = {node: [] for node in high}
    for index, layer in enumerate(origins.layers):
        nodes = origins.nodes(index) if can_be_marked(layer) else []
        if nodes and "" not in nodes and len({high[node][0] for node in nodes}) == 1:
            marked[nodes[0]].append(layer)
    return marked


class Origins:
    """Which nodes the layers of a network come from."""

    def __init__(self, network: Any, high: Mapping[str, Any]) -> None:
        self.layers = [network.get_layer(index) for index in range(network.num_layers)]
        self.high = high
        self.writers = {tensor: node for node in high for tensor in high[node][2]}
        self.borders = {tensor for node in high for tensor in high[node][1]}
        self.readers: dict[str, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for tensor in inputs_of(layer):
                self.readers.setdefault(tensor.name, []).append(index)

    def nodes(self, index: int) -> list[str]:
        """Return the node that a layer belongs to, or else those that read what it computes.

        Nodes that do not stay high are "".
        """
        names, visited, todo = [], set(), [index]
        while todo:
            at = todo.pop()
            if at in visited:
                continue
            visited.add(at)
            node = self.node(self.layers[at])
            if node is None:
                tensors = outputs_of(self.layers[at])
                todo += [i for tensor in tensors for i in self.readers.get(tensor.name, ())]
            else:
                names.append(node)
        return names

    def node(self, layer: Any) -> str | None:
        """Return the node that a layer belongs to by itself, None if it does not say."""
        if layer.type.name == "CONSTANT":
            return None
        if layer.metadata:
            name = onnx_name(layer, self.high)
            return name if name in self.high else ""
        names = [tensor.name for tensor in outputs_of(layer)]
        for name in names:
            if name in self.writers:
                return self.writers[name]
        return None if self.borders.isdisjoint(names) else ""


def mark(layer: Any, wanted: str) -> None:
    """Have the layer compute in the wanted type, and give out its floats in it."""
    types = type(layer.get_output(0).dtype)
    precision = getattr(types, TYPES[wanted])
    layer.precision = precision
    # Without an output type the builder may still hand the result on in the low one.
    for index, tensor in enumerate(outputs_of(layer)):
        if is_float(tensor):
            layer.set_output_type(index, precision)


def can_be_marked(layer: Any) -> bool:
    """Tell whether a mark on the layer has a meaning: whether it returns or compares floats.

    A mark on a layer of integers or of shapes would fail the build.
    """
    inputs, outputs = inputs_of(layer), outputs_of(layer)
    if layer.type.name in LEFT_ALONE or any(tensor.is_shape_tensor for tensor in outputs):
        return False
    if layer.type.name == "IDENTITY" and inputs[0].dtype != outputs[0].dtype:
        return False
    return bool(outputs) and any(map(is_float, (*outputs, *inputs)))


def onnx_name(layer: Any, high: Mapping[str, Any]) -> str:
    """Return the name of the ONNX node that the layer comes from, by its metadata.

    Behind the name and ` | ` are the node's documentation (8.6 and 9), its function, or the
    branches and loops that it is in.
    """
    name = str(layer.metadata)[len(ONNX_LAYER_PREFIX) : -1]
    return name if name in high else name.partition(" | ")[0]


def inputs_of(layer: Any) -> list[Any]:
    """Return the tensors that the layer reads."""
    tensors = [layer.get_input(index) for index in range(layer.num_inputs)]
    return [tensor for tensor in tensors if tensor is not None]


def outputs_of(layer: Any) -> list[Any]:
    """Return the tensors that the layer computes."""
    return [layer.get_output(index) for index in range(layer.num_outputs)]


def is_float(tensor: Any) -> bool:
    """Tell whether the tensor holds floating-point values."""
    return tensor.dtype.name in TYPES.values()
