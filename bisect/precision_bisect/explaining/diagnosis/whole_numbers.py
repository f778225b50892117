"""Which FP32 tensors hold indices and counts: whole numbers that were cast, or will be."""

from collections.abc import Iterable

import onnx

from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.load import Model

_COUNTING = frozenset(
    ("Abs", "Add", "Ceil", "Div", "Floor", "Max", "Min", "Mod", "Mul", "Neg", "Round", "Sub")
) | {"CumSum", "Range", "ReduceSum", "Where"}
"""Arithmetic of indices, as exporters write `//` and `%` in floats, and of positions."""
_CASTS = frozenset(("Cast", "CastLike"))
_INTEGERS = frozenset(
    onnx.TensorProto.DataType.Value(f"{sign}INT{bits}")
    for sign in ("", "U")
    for bits in (16, 32, 64)
)
"""Without those of 8 bits, which images have: they lose no digits."""


def whole_numbers(model: Model) -> frozenset[str]:
    """Return the FP32 tensors that arithmetic leads to from integers, or to integers from."""
    nodes = [
        node
        for node in model.proto.graph.node
        if node.op_type in _COUNTING | _CASTS or is_follower(node)
    ]
    came, went = set[str](), set[str]()

    def integers(node: onnx.NodeProto, names: Iterable[str]) -> bool:
        return node.op_type in _CASTS and any(model.elem_types.get(n) in _INTEGERS for n in names)

    for node in nodes:
        if not came.isdisjoint(node.input) or integers(node, node.input):
            came.update(node.output)
    for node in reversed(nodes):
        if not went.isdisjoint(node.output) or integers(node, node.output):
            went.update(node.input)
    floats = {n for n, kind in model.elem_types.items() if kind == onnx.TensorProto.FLOAT}
    return frozenset(floats & (came | went))
