"""The diagnosis of some layers of a model, from the samples of a run.

It runs once, after the search: asking an engine for extra outputs changes what it fuses, so the
search itself never does. Everything is read off ONNX Runtime in FP32 and off the emulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from precision_bisect.diagnosis.causes import Seen, cause_of, figures_of, histogram_of
from precision_bisect.diagnosis.findings import Finding, Findings
from precision_bisect.diagnosis.hurting import Case, Harm, harms
from precision_bisect.diagnosis.instrument import Instrument
from precision_bisect.diagnosis.magnitudes import Magnitudes
from precision_bisect.diagnosis.watching import Watched, births, measure, watch
from precision_bisect.layer_table import LayerName
from precision_bisect.lowtypes import LOW_TYPES
from precision_bisect.model.constants import read_constants
from precision_bisect.model.load import Model
from precision_bisect.model.settings import settings_of
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.quantization.scales import Scales

MOST_EMULATED = 2048
"""With more candidates FP32 values alone explain: emulating takes the memory of all once more."""
MOST_RUN_ALONE = 256
"""So many layers are run low by themselves; the others are judged by their values alone."""
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which layers to explain: the `kept` ones of an answer, and some `near` misses.

    `samples` are the run's. `drop_errors` has the error of the answer without a layer, on the
    tolerance's scale, where it was measured; `tensors` are further ones whose magnitudes are
    wanted; `threads` are ONNX Runtime's, 0 for all cores; `scales` those of layers that are fixed
    to an 8-bit type.
    """

    model: Model
    pair: Pair
    kept: Sequence[str]
    samples: Sequence[Sample]
    near: Sequence[str] = ()
    tensors: Sequence[str] = ()
    drop_errors: Mapping[str, float | None] = field(default_factory=dict)
    threads: int = 0
    scales: Scales | None = None


def diagnose(question: Question) -> tuple[Findings, Watched]:
    """Return findings without advice, in network order, and what was seen on the way.

    Raises ModelError where the low type needs an opset that the model does not survive,
    RuntimeError where ONNX Runtime cannot run.
    """
    model, low = question.model, LOW_TYPES[question.pair.low]
    wanted = {*question.kept, *question.near}
    nodes = [node for node in model.proto.graph.node if node.name in wanted]
    instrument = Instrument(model, question.pair, question.threads, question.scales)
    constants = _weights(question, nodes)
    measured = dict.fromkeys(
        name
        for node in nodes
        for name in (*node.input, *node.output)
        if model.elem_types.get(name) == _FLOAT and name not in constants
    )
    wanted_too = dict.fromkeys((*measured, *question.tensors))
    large = len(model.table.candidates) > MOST_EMULATED
    watched = (measure if large else watch)(instrument, list(wanted_too), question.samples)
    watched.magnitudes.update(constants)
    alone = {} if large else _alone(question, instrument, nodes, watched)
    layers = []
    for node in nodes:
        harm = alone.get(node.name)
        seen = _seen(node, watched.magnitudes, constants, harm)
        cause, evidence = cause_of(seen, low)
        error = question.drop_errors.get(node.name)
        if error is not None:
            evidence += f"; dropped: error {error:.3g}"
        layers.append(
            Finding(
                layer=node.name,
                kept=node.name in set(question.kept),
                cause=cause,
                evidence=evidence,
                figures={**figures_of(seen, low), "drop_error": error},
                histogram=histogram_of(seen),
                hurts=harm.hurts if harm else None,
            )
        )
    found = Findings(low=low.name, layers=layers, spread=births(model, watched))
    return found, watched


def _weights(question: Question, nodes: Sequence[onnx.NodeProto]) -> dict[str, Magnitudes]:
    """Return the magnitudes of the FP32 constants that the nodes read, settings apart."""
    low = LOW_TYPES[question.pair.low]
    readers = frozenset(node.name for node in nodes)
    found = {}
    for name, array in read_constants(question.model, readers).values.items():
        found[name] = Magnitudes()
        found[name].add(array, low)
    return found


def _alone(
    question: Question,
    instrument: Instrument,
    nodes: Sequence[onnx.NodeProto],
    watched: Watched,
) -> dict[str, Harm]:
    """Return what each of the layers does when it runs low, the first ones of very many."""
    model = question.model
    index = {str(name): i for i, name in enumerate(model.table.names)}
    high = Plan.all_high(len(index))
    answer = Plan.of(index[name] for name in question.kept) if question.kept else high
    cases = {}
    for node in [each for each in nodes if each.name in index][:MOST_RUN_ALONE]:
        outputs = [name for name in node.output if name in watched.magnitudes]
        if outputs:
            worst = max((watched.magnitudes[name] for name in outputs), key=lambda m: m.largest)
            cases[node.name] = Case(
                index=index[LayerName(node.name)],
                outputs=outputs,
                rest=answer if node.name in question.kept else high,
                sample=worst.place.sample if worst.place else 0,
            )
    return harms(instrument, cases, question.samples)


def _seen(
    node: onnx.NodeProto,
    magnitudes: Mapping[str, Magnitudes],
    constants: Mapping[str, Magnitudes],
    harm: Harm | None,
) -> Seen:
    read = [name for i, name in enumerate(node.input) if i not in settings_of(node)]
    named = [(name, magnitudes[name]) for name in dict.fromkeys(read) if name in magnitudes]
    return Seen(
        op_type=node.op_type,
        inputs=[each for each in named if each[0] not in constants],
        outputs=[(name, magnitudes[name]) for name in node.output if name in magnitudes],
        weights=[each for each in named if each[0] in constants],
        error_out=harm.error_out if harm else None,
    )
