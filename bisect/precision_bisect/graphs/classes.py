"""Outputs that are classes: whole numbers and truth values, not measurements.

Class 4000 beside 4010 is not nearly right: a relative error says nothing of them.
"""

from collections.abc import Mapping

import numpy as np
import onnx

from precision_bisect.graphs.load import Model

_CASTS = frozenset(("Cast", "CastLike"))
_MOVES = frozenset(
    ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)
"""Operators that move the values of their first input and change none."""


def class_outputs(model: Model) -> dict[str, str]:
    """Return the outputs that hold integers or truth values, each with its type.

    A float output that is cast from one counts, too: an ArgMax whose result is then a float.
    """
    makers = {out: node for node in model.proto.graph.node for out in node.output if out}
    found = {}
    for spec in model.outputs:
        origin = _origin(spec.name, makers, model.elem_types)
        kind = _whole(model.elem_types.get(origin))
        if kind is not None:
            found[spec.name] = kind if origin == spec.name else f"cast from {kind}"
    return found


def _origin(name: str, makers: Mapping[str, onnx.NodeProto], elem_types: Mapping[str, int]) -> str:
    """Return the first tensor of whole numbers on the way back through casts and moves."""
    while _whole(elem_types.get(name)) is None:
        node = makers.get(name)
        if node is None or node.domain not in ("", "ai.onnx"):
            return name
        if node.op_type not in _CASTS | _MOVES:
            return name
        name = node.input[0]
    return name


def _whole(elem_type: int | None) -> str | None:
    """Return the name of an integer or boolean type; None for every other."""
    if not elem_type:
        return None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return dtype.name if dtype.kind in "iub" else None
