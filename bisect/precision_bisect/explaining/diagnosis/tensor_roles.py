"""What FP32 tensors are for: indices and counts, and values whose small ones count as much."""

from collections.abc import Iterable

import onnx

from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View

_COUNTING = frozenset(
    ("Abs", "Add", "Ceil", "Div", "Floor", "Max", "Min", "Mod", "Mul", "Neg", "Round", "Sub")
) | {"CumSum", "Range", "ReduceSum", "Where"}
"""Arithmetic of indices, as exporters write `//` and `%` in floats, and of positions."""
_MAGNIFYING = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators whose result is large, or far from right, where this operand is small."""
_LIMITING = frozenset(("Abs", "Clip", "Max", "Neg"))
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


def magnified(model: Model) -> frozenset[str]:
    """Return the tensors that are divided by, or whose logarithm or root is taken.

    The loss of their small values is large in the result. Powers count if their exponent is not
    known to be 1 or more, and tensors whose values are only moved or limited on the way.
    """
    view, found = View(model), set[str]()
    for node in reversed(view.nodes):
        if node.op_type in _MAGNIFYING and not _grows(view, node):
            found.add(node.input[_MAGNIFYING[node.op_type]])
        elif is_follower(node) or node.op_type in _LIMITING:
            found.update(node.input if not found.isdisjoint(node.output) else ())
    return frozenset(found)


def _grows(view: View, node: onnx.NodeProto) -> bool:
    """Tell whether a node is a power with exponents from 1 on."""
    exponents = view.array(node.input[1]) if node.op_type == "Pow" else None
    return exponents is not None and bool((exponents >= 1).all())
