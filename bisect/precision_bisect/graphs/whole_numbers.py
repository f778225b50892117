"""Whole numbers in floats: indices and positions, which exporters compute in FP32."""

from collections.abc import Iterable
from typing import NamedTuple

import onnx

from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.load import Model

# Arithmetic of indices, as exporters write `//` and `%` in floats, and of positions.
_COUNTING = frozenset(
    ("Abs", "Add", "Ceil", "Div", "Floor", "Max", "Min", "Mod", "Mul", "Neg", "Round", "Sub")
) | {"CumSum", "Range", "ReduceSum", "Where"}
_CASTS = frozenset(("Cast", "CastLike"))
# Without those of 8 bits, which images have: they lose no digits.
_INTEGERS = frozenset(
    onnx.TensorProto.DataType.Value(f"{sign}INT{bits}")
    for sign in ("", "U")
    for bits in (16, 32, 64)
)


_COMPARING = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))


class WholeNumbers(NamedTuple):
    """The FP32 tensors that arithmetic leads to from integers, and to integers from.

    `exact` come from integers, and lead to integers or to a comparison: FP32 rounds none of them.
    """

    from_integers: frozenset[str]
    to_integers: frozenset[str]
    exact: frozenset[str]


def whole_numbers(model: Model) -> WholeNumbers:
    """Return where a model's main graph computes whole numbers in floats."""
    nodes = [
        node
        for node in model.proto.graph.node
        if node.op_type in _COUNTING | _CASTS or is_follower(node)
    ]
    comparing = (node for node in model.proto.graph.node if node.op_type in _COMPARING)
    came, went = set[str](), set[str]()
    compared = {name for node in comparing for name in node.input}

    def integers(node: onnx.NodeProto, names: Iterable[str]) -> bool:
        return node.op_type in _CASTS and any(model.elem_types.get(n) in _INTEGERS for n in names)

    for node in nodes:
        if not came.isdisjoint(node.input) or integers(node, node.input):
            came.update(node.output)
    # Backwards in network order, one pass reaches all that leads to an integer.
    for node in reversed(nodes):
        if not went.isdisjoint(node.output) or integers(node, node.output):
            went.update(node.input)
        if not compared.isdisjoint(node.output):
            compared.update(node.input)
    floats = {n for n, kind in model.elem_types.items() if kind == onnx.TensorProto.FLOAT}
    return WholeNumbers(
        from_integers=frozenset(floats & came),
        to_integers=frozenset(floats & went),
        exact=frozenset(floats & came & (went | compared)),
    )
