"""Which inputs give shapes by their values: a Reshape's target, a Resize's sizes, a Slice's ends.

TensorRT calls them shape tensors and reads their values on the host: an engine is built for a
range of these values.
"""

from collections.abc import Sequence

import onnx

from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.types import TensorSpec

_OF_SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "TopK", "OneHot", "Split", "CumSum"), (1,)),
    **{"ConstantOfShape": (0,), "Range": (0, 1, 2), "Resize": (2, 3), "Upsample": (1,)},
    **{"Slice": (1, 2, 3, 4), "Pad": (1, 3)},
}
"""Operators with the positions of inputs whose values decide shapes (TensorRT-RTX 1.7.1)."""
_FORGET_VALUES = frozenset(("Shape", "Size"))


def shape_inputs(graph: onnx.GraphProto, inputs: Sequence[TensorSpec]) -> frozenset[str]:
    """Return the names of the integer inputs whose values decide shapes.

    Only those with a known number of values count: TensorRT takes no others.
    """
    decisive = _decisive(graph)
    return frozenset(spec.name for spec in inputs if spec.name in decisive and _counted(spec))


def value_count(spec: TensorSpec) -> int:
    """Return how many values an input holds that gives a shape."""
    size = spec.shape[0] if spec.shape else 1
    return size if isinstance(size, int) else 0


def _counted(spec: TensorSpec) -> bool:
    flat = spec.shape is not None and len(spec.shape) <= 1
    return spec.dtype in ("int32", "int64") and flat and value_count(spec) > 0


def _decisive(graph: onnx.GraphProto) -> set[str]:
    """Return every tensor whose values reach an input that decides a shape."""
    nodes = [node for each in all_graphs(graph) for node in each.node]
    makers = {name: node for node in nodes for name in node.output if name}
    pending = [
        node.input[position]
        for node in nodes
        if node.domain in ("", "ai.onnx")
        for position in _OF_SHAPES.get(node.op_type, ())
        if position < len(node.input)
    ]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        maker = makers.get(name)
        # The shape of a tensor does not depend on its values, so the way ends at a Shape.
        if maker is not None and maker.op_type not in _FORGET_VALUES:
            pending += [each for each in maker.input if each]
    return found
