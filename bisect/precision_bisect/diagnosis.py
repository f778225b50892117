"""Why a kept layer needs the precision, read off one FP32 run that shows its inputs and outputs.

This runs once, after the search: asking an engine for extra outputs changes what it fuses, so the
search itself never does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.lowtypes import LOW_TYPES, LowType
from precision_bisect.model.load import Model
from precision_bisect.options import LowName
from precision_bisect.ort import Session
from precision_bisect.protocols import Sample
from precision_bisect.result import Diagnosis

FLUSHED_SHARE = 0.01
"""Share of values lost to zero or subnormals from which underflow is called the cause."""
LOST_BITS = 3.0
"""Bits lost by subtraction from which cancellation is called the cause."""
_SUBTRACTING = frozenset(("Add", "Sub", "Sum", "ReduceSum", "ReduceMean", "Mean"))


@dataclass(slots=True)
class Spread:
    """What the values of one tensor come to, over all samples that were added."""

    largest: float = 0.0
    nonzero: int = 0
    small: int = 0
    squares: float = 0.0
    count: int = 0

    def add(self, array: NDArray[Any], low: LowType) -> None:
        """Account for an array of any shape; `small` counts what is below `low`'s normal range."""
        magnitudes = np.abs(array[array != 0])
        self.largest = max(self.largest, float(magnitudes.max(initial=0)))
        self.nonzero += magnitudes.size
        self.small += int((magnitudes < low.smallest_normal).sum())
        self.squares += float(np.square(magnitudes, dtype=np.float64).sum())
        self.count += array.size

    @property
    def small_share(self) -> float:
        """The share of the non-zero values below the normal range."""
        return self.small / self.nonzero if self.nonzero else 0.0

    @property
    def mean_square(self) -> float:
        """The mean of the squares; 0 for no values."""
        return self.squares / self.count if self.count else 0.0


Spreads = Mapping[str, Spread]


def diagnose(
    model: Model,
    kept: Sequence[str],
    samples: Sequence[Sample],
    low: LowName,
    drop_errors: Mapping[str, float | None],
    threads: int = 0,
) -> list[Diagnosis]:
    """Return one diagnosis per kept layer, in network order.

    `drop_errors` are the errors of the plan without that layer, where they were measured; they go
    into the evidence.
    """
    wanted = frozenset(kept)
    nodes = [node for node in model.proto.graph.node if node.name in wanted]
    low_type = LOW_TYPES[low]
    spreads = {
        **_weights(model, nodes, low_type),
        **_values(model, nodes, samples, low_type, threads),
    }
    weights = frozenset(tensor.name for tensor in model.proto.graph.initializer)
    found = []
    for node in nodes:
        cause, evidence = _cause(node, spreads, weights, low_type)
        error = drop_errors.get(node.name)
        if error is not None:
            evidence += f"; dropped: error {error:.3g}"
        found.append(Diagnosis(layer=node.name, cause=cause, evidence=evidence))
    return found


def _weights(model: Model, nodes: Sequence[onnx.NodeProto], low: LowType) -> Spreads:
    """Return the spreads of the FP32 weights that the nodes read."""
    read = {name for node in nodes for name in node.input}
    spreads = {}
    for tensor in model.proto.graph.initializer:
        if tensor.name in read and tensor.data_type == onnx.TensorProto.FLOAT:
            held = model.weights.get(tensor.name)
            spreads[tensor.name] = Spread()
            spreads[tensor.name].add(
                onnx.numpy_helper.to_array(tensor) if held is None else held, low
            )
    return spreads


def _values(
    model: Model,
    nodes: Sequence[onnx.NodeProto],
    samples: Sequence[Sample],
    low: LowType,
    threads: int,
) -> Spreads:
    """Return the spreads of what goes into and comes out of the nodes in FP32."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    names = {
        name
        for node in nodes
        for name in (*node.input, *node.output)
        if model.elem_types.get(name) == onnx.TensorProto.FLOAT and name not in constants
    }
    shown = onnx.ModelProto()
    shown.CopyFrom(model.proto)
    present = {value.name for value in (*shown.graph.output, *shown.graph.input)}
    shown.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in sorted(names - present)
    )
    session = Session(shown, model.weights, threads)
    spreads = {name: Spread() for name in names}
    for sample in samples:
        outputs = {**sample, **session.run(sample)}
        for name, spread in spreads.items():
            spread.add(outputs[name], low)
    return spreads


def _cause(
    node: onnx.NodeProto, spreads: Spreads, weights: frozenset[str], low: LowType
) -> tuple[str, str]:
    inputs = [spreads[n] for n in node.input if n in spreads and n not in weights]
    outputs = [spreads[n] for n in node.output if n in spreads]
    constants = [spreads[n] for n in node.input if n in spreads and n in weights]
    groups = (("output", outputs), ("input", inputs), ("weight", constants))
    for what, found in groups:
        largest = max((spread.largest for spread in found), default=0.0)
        if largest > low.largest:
            return (
                "overflow",
                f"{what} reaches {largest:.3g}, {low.name} ends at {low.largest:.5g}",
            )
    for what, found in groups:
        share = max((spread.small_share for spread in found), default=0.0)
        if share >= FLUSHED_SHARE:
            return "underflow", (
                f"{share:.0%} of the {what} is below {low.smallest_normal:.2g}, where {low.name} "
                "loses digits or becomes 0"
            )
    lost = _lost_bits(node, [*inputs, *constants], outputs)
    if lost >= LOST_BITS:
        return "cancellation", (
            f"the result is 2^{lost:.1f} times smaller than what is added, {low.name} has "
            f"{low.digits} significant bits"
        )
    return "rounding", f"{low.name} rounds to {low.digits} significant bits"


def _lost_bits(node: onnx.NodeProto, inputs: Sequence[Spread], outputs: Sequence[Spread]) -> float:
    """Return log2 of how much larger the operands are than the result, by root mean square."""
    before = max((spread.mean_square for spread in inputs), default=0.0)
    after = max((spread.mean_square for spread in outputs), default=0.0)
    if node.op_type not in _SUBTRACTING or not before or not after:
        return 0.0
    return float(np.log2(before / after)) / 2
