"""Low nodes, written as every parser of TensorRT 10 takes them.

That of 10.0 to 10.10 brings FP32 constants to some operators, whatever type they have (Gemm, GRU,
LSTM and RNN in onnxOpImporters.cpp of github.com/onnx/onnx-tensorrt): for factors of a Gemm other
than one, and for states of a recurrence that are not given. Strong typing refuses that. So weights
take the factors in, and states are zeros of the low type. TensorRT-RTX 1.7.1 takes both.
"""

import onnx

from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.typed.added import Added

_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
"""Positions of the initial states."""
_BIAS = 2
_BATCH = 1
"""The axis of a recurrence's input."""


def spell_out(
    added: Added, node: onnx.NodeProto, low: LowType, written: onnx.NodeProto, folds: bool
) -> None:
    """Change `written`, which is to be the low form of `node`; add what it reads.

    `folds` tells whether weights are constants of the low type, not quantized ones.
    """
    if node.domain not in ("", "ai.onnx"):
        return
    if node.op_type == "Gemm":
        _without_factors(added, node, low, written, folds)
    for position in _STATES.get(node.op_type, ()):
        _with_state(added, node, low, written, position)


def _without_factors(
    added: Added, node: onnx.NodeProto, low: LowType, written: onnx.NodeProto, folds: bool
) -> None:
    biased = len(node.input) > _BIAS and node.input[_BIAS]
    # The product's factor goes to a weight, or else to what is multiplied first.
    for name, positions in (("alpha", (1, 0)), ("beta", (_BIAS,) if biased else ())):
        factor = attribute(node, name)
        if factor is not None and factor.f != 1 and positions:
            _take_in(added, node, low, written, (factor.f, positions, folds))
    kept = [each for each in written.attribute if each.name not in ("alpha", "beta")]
    del written.attribute[:]
    written.attribute.extend(kept)


def _take_in(
    added: Added,
    node: onnx.NodeProto,
    low: LowType,
    written: onnx.NodeProto,
    asked: tuple[float, tuple[int, ...], bool],
) -> None:
    """Multiply one input: the first that is a constant, else the last, by a node before."""
    factor, positions, folds = asked
    for i in positions:
        scaled = added.scaled_constant(node.input[i], low, factor) if folds else None
        if scaled is not None:
            written.input[i] = scaled
            return
    written.input[i] = added.product(f"{node.name}/{i}", written.input[i], low, factor)


def _with_state(
    added: Added, node: onnx.NodeProto, low: LowType, written: onnx.NodeProto, position: int
) -> None:
    size, direction, layout = (attribute(node, n) for n in ("hidden_size", "direction", "layout"))
    given = position < len(node.input) and node.input[position]
    # Without its size ONNX takes that of the weights; another layout no TensorRT takes.
    if given or size is None or (layout is not None and layout.i):
        return
    ways = 2 if direction is not None and direction.s == b"bidirectional" else 1
    written.input.extend([""] * (position + 1 - len(written.input)))
    written.input[position] = added.zero_state(written.input[0], low, (ways, _BATCH, size.i))
