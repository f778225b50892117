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
_CONSTANTS = frozenset(("Constant", "ConstantOfShape"))
_COMPARING = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))


class WholeNumbers(NamedTuple):
    """The FP32 tensors that arithmetic leads to from integers, and to integers from.

    `exact` come from integers and constants alone, and lead to integers or to a comparison: a
    rounding of them is meant to change nothing. A score that a mask was added to is none of them.
    """

    from_integers: frozenset[str]
    to_integers: frozenset[str]
    exact: frozenset[str]


def whole_numbers(model: Model) -> WholeNumbers:
    """Return where a model's main graph computes whole numbers in floats."""
    graph = model.proto.graph
    nodes = [node for node in graph.node if _counts(node)]
    comparing = (node for node in graph.node if node.op_type in _COMPARING)
    came, went = set[str](), set[str]()
    compared = {name for node in comparing for name in node.input}
    of_floats = {value.name for value in graph.input if _is_float(model, value.name)}

    def integers(node: onnx.NodeProto, names: Iterable[str]) -> bool:
        return node.op_type in _CASTS and any(model.elem_types.get(n) in _INTEGERS for n in names)

    for node in nodes:
        if not came.isdisjoint(node.input) or integers(node, node.input):
            came.update(node.output)
    for node in graph.node:
        counts = _counts(node) or node.op_type in _CONSTANTS
        if not counts or not of_floats.isdisjoint(node.input):
            of_floats.update(name for name in node.output if _is_float(model, name))
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
        exact=frozenset((floats & came & (went | compared)) - of_floats),
    )


def _counts(node: onnx.NodeProto) -> bool:
    return node.op_type in _COUNTING | _CASTS or is_follower(node)


def _is_float(model: Model, name: str) -> bool:
    return model.elem_types.get(name) in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
