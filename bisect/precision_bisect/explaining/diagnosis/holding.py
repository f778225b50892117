"""Which tensors of a layer its low form changes, what holds them then, and what they are for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from precision_bisect.explaining.diagnosis.magnitudes import Held, Magnitudes, Scaled
from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.constant_values import read_constants
from precision_bisect.graphs.graph import attribute, settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.quantization.quantized_layers import OPERANDS
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.precisions import Pair

_FLOAT = onnx.TensorProto.FLOAT
_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""The axis of the first operand along which products are summed. Channels along it share a scale.
"""

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


def read_low(node: onnx.NodeProto, pair: Pair) -> list[str]:
    """Return the tensors that a node reads low, each once; inputs such as axes do not count."""
    if pair.low in QUANTIZED:
        return list(dict.fromkeys(node.input[i] for i in OPERANDS if i < len(node.input)))
    settings = settings_of(node)
    return list(dict.fromkeys(each for i, each in enumerate(node.input) if i not in settings))


def stored_low(node: onnx.NodeProto, pair: Pair) -> list[str]:
    """Return the tensors that a node stores low: an 8-bit layer stores in the high type."""
    return [] if pair.low in QUANTIZED else [name for name in node.output if name]


def held_in(
    model: Model, pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> dict[str, Held]:
    """Return the type that holds each FP32 tensor that the nodes read or store low.

    Constants are left out: they have figures of their own (see `constants_of`).
    """
    if pair.low in QUANTIZED:
        return dict(_activations(pair, scales, nodes))
    low = LOW_TYPES[pair.low]
    return {
        name: low
        for node in nodes
        for name in (*node.input, *node.output)
        if model.elem_types.get(name) == _FLOAT
    }


def _activations(
    pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> Iterator[tuple[str, Scaled]]:
    axes: dict[str, set[int | None]] = {}
    for node in nodes:
        for position in OPERANDS:
            if (name := node.input[position]) in scales.activations:
                axes.setdefault(name, set()).add(_channels(node, position))
    for name, along in axes.items():
        scale = np.array(scales.activations[name], np.float32)
        # A channel to one reader is none to another that sums along another axis.
        channels = along.pop() if len(along) == 1 else None
        yield name, Scaled(kind=QUANTIZED[pair.low], scale=scale, channels=channels)


def _channels(node: onnx.NodeProto, position: int) -> int | None:
    """Return the axis of an operand's channels; None where it has none that are known."""
    transposed = attribute(node, "transA")
    if position != 0 or (transposed is not None and transposed.i):
        return None
    return _CHANNELS[node.op_type]


def constants_of(
    model: Model, pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> Mapping[str, Magnitudes]:
    """Return the magnitudes of the FP32 constants that the nodes read low, settings apart."""
    found = {}
    readers = frozenset(node.name for node in nodes)
    for name, array in read_constants(model, readers).values.items():
        held: Held
        if pair.low not in QUANTIZED:
            held = LOW_TYPES[pair.low]
        elif name in scales.weights:
            scale = scales.weights[name].along(array.ndim)
            held = Scaled(kind=QUANTIZED[pair.low], scale=scale)
        else:
            continue
        found[name] = Magnitudes()
        found[name].add(array.astype(np.float32, copy=False), held)
    return found


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
