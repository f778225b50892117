"""What operators that an engine takes apart store between their steps, as FP32 has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from precision_bisect.explaining.diagnosis.causes import Named
from precision_bisect.explaining.diagnosis.holding import Magnitudes, magnified
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.graph import copied, refill, showing
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.types import infer_elem_types
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import Inside

_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True)
class StepValues:
    """The tensors between steps: by layer, with the operators that make them; see `magnified`."""

    by_layer: Mapping[str, Mapping[str, Named]] = field(default_factory=dict)
    magnified: frozenset[str] = frozenset()


def step_values(
    instrument: Instrument, nodes: Sequence[onnx.NodeProto], samples: Sequence[Sample]
) -> StepValues:
    """Run the samples with the steps of these nodes written out. Raises RuntimeError."""
    model, low = instrument.model, LOW_TYPES.get(instrument.pair.low)
    apart = [node for node in nodes if instrument.semantics.inside(node) is Inside.STEPS]
    if low is None or not apart:
        return StepValues()
    proto = copied(model.proto)
    proto.graph.ClearField("value_info")
    steps = {node.name: instrument.semantics.unrounded(node) for node in apart}
    refill(proto.graph.node, [s for n in model.proto.graph.node for s in steps.get(n.name, [n])])
    types = infer_elem_types(proto, model.weights)
    # What is made of constants alone, such as an epsilon, is no step.
    between = {
        node.name: _between(steps[node.name], {*node.input}, {*node.output}, types)
        for node in apart
    }
    names = [name for op_types in between.values() for name in op_types]
    session = Session(showing(proto, names), model.weights, instrument.threads)
    magnitudes = {name: Magnitudes() for name in names}
    for number, sample in enumerate(samples):
        for name, array in session.run(sample, names).items() if names else ():
            magnitudes[name].add(array, low, number)
    by_layer: dict[str, dict[str, list[tuple[str, Magnitudes]]]] = {}
    for layer, op_types in between.items():
        groups = by_layer.setdefault(layer, {})
        for name, op_type in op_types.items():
            groups.setdefault(op_type, []).append((name, magnitudes[name]))
    return StepValues(by_layer, magnified(replace(model, proto=proto)))


def _between(
    steps: Sequence[onnx.NodeProto],
    reached: set[str],
    outputs: set[str],
    types: Mapping[str, int],
) -> dict[str, str]:
    """Return the float tensors that are computed from the inputs, with their operators."""
    op_types: dict[str, str] = {}
    for step in steps:
        if reached.isdisjoint(step.input):
            continue
        reached.update(step.output)
        op_types |= {
            name: step.op_type
            for name in step.output
            if name not in outputs and types.get(name, _FLOAT) == _FLOAT
        }
    return op_types
