"""Operators whose error in a low type grows with the size of an input.

A low type has digits, not decimals: at 1,000 FP16 has steps of 0.5. Most operators pass that on as
a share of the value. Those here do not: an angle, an index or a part of a whole is lost.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import onnx

from precision_bisect.graphs.classify import FOLLOWERS
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View

_GROWING = frozenset(
    ("Sin", "Cos", "Tan", "CumSum", "Range", "Mod", "Floor", "Ceil", "Round", "GridSample")
)
_PRODUCTS = frozenset(("MatMul", "Gemm", "Einsum"))
_ARITHMETIC = frozenset(
    ("Cast", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sum", "Min", "Max", "Clip", "Where")
)
_LOOK_UP = frozenset(("Gather", "GatherElements", "GatherND"))
_PASSING = (FOLLOWERS - _LOOK_UP) | _ARITHMETIC | _PRODUCTS
"""Operators that pass on how large a value is. At all others the way ends: a norm and a Softmax
forget it, and an embedding knows nothing of the size of an id."""
_FLOAT = onnx.TensorProto.FLOAT
_INTEGERS = frozenset(
    onnx.TensorProto.DataType.Value(f"{sign}INT{bits}")
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
)


class SizedInput(NamedTuple):
    """A graph input, the operator that its size reaches, and the float tensor that tells it.

    `whole` tells that the tensor holds whole numbers, which are exact as long as steps are 1.
    """

    input: str
    op_type: str
    node: str
    tensor: str
    whole: bool = False


def sized_inputs(model: Model) -> list[SizedInput]:
    """Return the nearest such operator of each input, one for each kind, in network order."""
    readers = View(model).readers
    found: dict[tuple[str, str], SizedInput] = {}
    for given in model.inputs:
        for each in _reached(model, readers, given.name):
            found.setdefault((each.input, each.op_type), each)
    return list(found.values())


def _reached(
    model: Model, readers: dict[str, list[onnx.NodeProto]], start: str
) -> Iterator[SizedInput]:
    seen, pending = {start}, deque([start])
    while pending:
        name = pending.popleft()
        for node in readers.get(name, ()):
            tensor = _told(model, node, name)
            if tensor:
                whole = node.op_type == "Cast" and tensor != name
                yield SizedInput(start, node.op_type, node.name, tensor, whole)
                if not whole:
                    continue
            if node.op_type not in _PASSING or not _carries(node, name):
                continue
            fresh = [each for each in node.output if each and each not in seen]
            seen.update(fresh)
            pending.extend(fresh)


def _carries(node: onnx.NodeProto, name: str) -> bool:
    """Tell whether an operator passes on what it reads here: no shapes, axes and conditions."""
    places = [i for i, each in enumerate(node.input) if each == name]
    if node.op_type == "Where":
        return any(i > 0 for i in places)
    if node.op_type in FOLLOWERS and node.op_type != "Concat":
        return 0 in places
    return True


def _told(model: Model, node: onnx.NodeProto, name: str) -> str:
    """Return the float tensor whose size an operator's error grows with, "" for no such one.

    A Cast makes whole numbers of floats, which are indices then, or floats of whole numbers.
    """
    op, out = node.op_type, node.output[0] if node.output else ""
    if op == "Cast":
        kinds = [model.elem_types.get(each) for each in (name, out)]
        if kinds[0] in _INTEGERS and kinds[1] == _FLOAT:
            return out
        return name if kinds[0] == _FLOAT and kinds[1] in _INTEGERS else ""
    if op not in _GROWING or (op == "GridSample" and node.input[1] != name):
        return ""
    # A sum is as large as what it comes to, all others as what they read.
    tensor = out if op in ("CumSum", "Range") else name
    return tensor if model.elem_types.get(tensor) == _FLOAT else ""
