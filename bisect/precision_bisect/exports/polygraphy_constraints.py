"""Keeps layers high while TensorRT runs the rest low, by weak typing (TensorRT 8.6 to 10.x).

Written by precision-bisect, which copies this file and fills in FLAGS, KEPT and WITH_THEM. Use it
as

    polygraphy convert MODEL.onnx -o MODEL.engine FLAGS --trt-network-postprocess-script THIS_FILE
    polygraphy run MODEL.onnx --trt FLAGS --trt-network-postprocess-script THIS_FILE

with the FLAGS below: without them TensorRT takes no notice of what is set here. Where --int8 or
--fp8 is among them, MODEL.onnx is model.mixed.onnx, which says what is quantized and how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from precision_bisect.backends.tensorrt.weak import mark, to_mark

FLAGS = ""
KEPT: Mapping[str, Any] = {}
"""The layers above the lowest precision: the type of each, and the tensors it reads and writes."""
WITH_THEM: Mapping[str, Any] = {}
"""Other nodes that read or write such tensors, so that nothing is rounded between the layers."""


def postprocess(network: Any) -> None:
    """Set precision and output types of the kept layers and the nodes with them, and of no others.

    Stops with one sentence where TensorRT has no weak typing, where the network is strongly typed
    and where no kept layer is in it. Names those that are not in it, as some can be folded away.
    """
    if network.num_layers and not hasattr(network.get_layer(0), "precision"):
        raise SystemExit(
            "this TensorRT has no weak typing (11 and RTX are strongly typed): "
            "build model.mixed.onnx instead, without this script"
        )
    high = {**WITH_THEM, **KEPT}
    layers_by_name = to_mark(network, high)
    missing = [name for name in KEPT if not layers_by_name[name]]
    message = "the network has no layer that computes floats for"
    if missing and len(missing) == len(KEPT):
        raise SystemExit(f"{message} {missing[0]!r}, nor for any other kept layer")
    for name, layers in layers_by_name.items():
        for layer in layers:
            mark(layer, high[name][0])
            if not layer.precision_is_set:
                raise SystemExit(
                    "this network is strongly typed: leave --strongly-typed out, "
                    "or build model.mixed.onnx instead, without this script"
                )
    counts = Counter(KEPT[name][0].upper() for name in KEPT if layers_by_name[name])
    stay = ", ".join(f"{counts[kind]} {kind}" for kind in counts)
    marked = sum(map(len, layers_by_name.values()))
    print(  # noqa: T201 - the script is a program of its own
        f"layers of the model that stay: {stay or 'none'} ({marked} in TensorRT), given {FLAGS}"
    )
    for name in missing:
        print(f"{message} {name!r}")  # noqa: T201
