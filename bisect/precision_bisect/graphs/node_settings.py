"""Inputs that stay FP32 whatever the layer's precision: they are settings, not data."""

import onnx

NEVER_LOW_INPUTS: dict[str, tuple[int, ...]] = {
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Dropout": (1,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
}
"""Scales and sizes of a Resize, a Dropout's ratio, a OneHot's depth, the ends of a Range."""


def settings_of(node: onnx.NodeProto) -> list[int]:
    """Return the positions of the node's inputs that stay FP32."""
    return [i for i in NEVER_LOW_INPUTS.get(node.op_type, ()) if i < len(node.input)]
