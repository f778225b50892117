"""Keeps layers high while TensorRT runs the rest low, by weak typing (TensorRT 8.6 to 10.x).

Written by precision-bisect, which copies this file and fills in FLAGS and KEPT. Use it as

    polygraphy convert MODEL.onnx -o MODEL.engine FLAGS --trt-network-postprocess-script THIS_FILE
    polygraphy run MODEL.onnx --trt FLAGS --trt-network-postprocess-script THIS_FILE

with the FLAGS below: without them TensorRT takes no notice of what is set here. Where --int8 or
--fp8 is among them, MODEL.onnx is model.mixed.onnx, which says what is quantized and how.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

FLAGS = ""
KEPT: dict[str, str] = {}
"""The layers above the lowest precision, each with its type."""

PREFIX = "[ONNX Layer: "
INSIDE = (" (If)", " (Loop)", " (Scan)")
ENUMERATORS = {"FP32": "FLOAT", "FP16": "HALF", "BF16": "BF16"}
FLOATS = tuple(ENUMERATORS.values())
LEFT_ALONE = (
    "ASSERTION",
    "ATTENTION_INPUT",
    "ATTENTION_OUTPUT",
    "CAST",
    "CONDITION",
    "CONDITIONAL_INPUT",
    "CONDITIONAL_OUTPUT",
    "CONSTANT",
    "DEQUANTIZE",
    "DIST_COLLECTIVE",
    "DYNAMIC_QUANTIZE",
    "IDENTITY",
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


def postprocess(network: Any) -> None:
    """Set precision and output types of the kept layers, and of no others.

    Stops with one sentence where TensorRT has no weak typing, where the network is strongly typed
    and where no kept layer is in it. Names those that are not in it, as some can be folded away.
    """
    if network.num_layers and not hasattr(network.get_layer(0), "precision"):
        raise SystemExit(
            "this TensorRT has no weak typing (11 and RTX are strongly typed): "
            "build model.mixed.onnx instead, without this script"
        )
    found = select(network)
    missing = [name for name in KEPT if not found[name]]
    said = "the network has no layer that computes floats for"
    if missing and len(missing) == len(KEPT):
        raise SystemExit(f"{said} {missing[0]!r}, nor for any other kept layer")
    for name, wanted in KEPT.items():
        for layer in found[name]:
            mark(layer, wanted)
    counts = Counter(wanted for name, wanted in KEPT.items() if found[name])
    stay = ", ".join(f"{counts[kind]} layers of the model stay {kind}" for kind in counts)
    marked = sum(map(len, found.values()))
    print(  # noqa: T201 - the script is a program of its own
        f"{stay} ({marked} in TensorRT), given {FLAGS}"
    )
    for name in missing:
        print(f"{said} {name!r}")  # noqa: T201


def select(network: Any) -> dict[str, list[Any]]:
    """Return the network's layers that compute each kept layer, in network order."""
    found: dict[str, list[Any]] = {name: [] for name in KEPT}
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        name = onnx_name(layer)
        if name in found and layer.type.name not in LEFT_ALONE and float_outputs(layer):
            found[name].append(layer)
    return found


def onnx_name(layer: Any) -> str:
    """Return the name of the ONNX node that the layer comes from.

    One node can become several layers; all of them have it in their metadata, TensorRT 8.6 and 9
    with the node's documentation behind ` | `, later ones with its function. So a node of a branch
    or a loop has what it is in, and is another one than its namesake outside. Constants have no
    metadata and the name of their initializer.
    """
    metadata: str = layer.metadata
    if not metadata.startswith(PREFIX) or not metadata.endswith("]"):
        return str(layer.name)
    name = metadata[len(PREFIX) : -1]
    return name if name in KEPT or name.endswith(INSIDE) else name.partition(" | ")[0]


def float_outputs(layer: Any) -> list[int]:
    """Return the positions of the outputs that are floating point, shape tensors left out."""
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    return [i for i, t in enumerate(outputs) if t.dtype.name in FLOATS and not t.is_shape_tensor]


def mark(layer: Any, wanted: str) -> None:
    """Have the layer compute and give out the wanted type."""
    floats = float_outputs(layer)
    types = type(layer.get_output(floats[0]).dtype)
    precision = getattr(types, ENUMERATORS[wanted])
    layer.precision = precision
    for i in floats:
        layer.set_output_type(i, precision)
    if not layer.precision_is_set:
        raise SystemExit(
            "this network is strongly typed: leave --strongly-typed out, "
            "or build model.mixed.onnx instead, without this script"
        )
