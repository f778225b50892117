"""The diagnosis of some layers of a model, from the samples of a run.

It runs once, after the search: asking an engine for extra outputs changes what it fuses, so the
search itself never does. Everything is read off ONNX Runtime in FP32 and off the emulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from precision_bisect.errors import shortened
from precision_bisect.explaining.diagnosis.causes import (
    Observed,
    cause_of,
    figures_of,
    histogram_of,
    quantized_cause_of,
    quantized_figures_of,
)
from precision_bisect.explaining.diagnosis.findings import Finding, Findings
from precision_bisect.explaining.diagnosis.holding import (
    constants_of,
    held_in,
    magnified,
    read_low,
    whole_numbers,
)
from precision_bisect.explaining.diagnosis.hurting import MOST_FOLLOWED, Harm, LoweredLayer, harms
from precision_bisect.explaining.diagnosis.instrument import (
    Instrument,
    WatchedTensors,
    births,
    watch,
    watched_under,
)
from precision_bisect.explaining.diagnosis.selections import selections
from precision_bisect.explaining.diagnosis.step_values import StepValues, step_values
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.weights import LARGE_BYTES, total_bytes
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import DEFAULT_TARGETS, Inside, TargetName

MOST_EMULATED = 2048
"""Candidates above which FP32 values alone explain: an emulator takes about the model's memory
once more. A limit on memory."""
MOST_RUN_ALONE = 256
"""Layers that are run low by themselves, at most; the others are judged by their values alone: a
limit on the time after the search, an inference of each sample for each layer."""
ROUNDINGS = 8
"""So many roundings of its largest value an output may be off and be right. Half and double change
nothing in benchmarks/constants.py."""
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which layers to explain: the `kept` ones of an answer, and some `near` misses.

    `samples` are the run's. `drop_errors` has the error of the answer without a layer, on the
    tolerance's scale, where it was measured. `tensors` are further ones whose magnitudes in a
    16-bit type are wanted. `threads` are ONNX Runtime's, 0 for all cores. `scales` are those of
    everything that is quantized. Of the `targets` the one that stores most inside layers is
    emulated. If the question is `brief`, no layer is emulated: else they run low one by one, to
    see what each does. `choices` asks what chooses rows of the outputs otherwise.
    """

    model: Model
    pair: Pair
    kept: Sequence[str]
    samples: Sequence[Sample]
    near: Sequence[str] = ()
    tensors: Sequence[str] = ()
    drop_errors: Mapping[str, float | None] = field(default_factory=dict)
    threads: int = 0
    scales: Scales = field(default_factory=Scales)
    targets: Sequence[TargetName] = DEFAULT_TARGETS
    brief: bool = False
    choices: bool = True


def emulates(model: Model) -> bool:
    """Tell whether a model is small enough to be emulated once more after the search."""
    few = len(model.table.candidates) <= MOST_EMULATED
    return few and total_bytes(model.weights) <= LARGE_BYTES


def diagnose(question: Question) -> tuple[Findings, WatchedTensors]:
    """Return findings without advice, in network order, and the tensors seen on the way.

    Raises ModelError if the low type needs an opset that the model cannot be converted to,
    RuntimeError where ONNX Runtime cannot run.
    """
    model, pair, scales = question.model, question.pair, question.scales
    wanted = {*question.kept, *question.near}
    nodes = [node for node in model.proto.graph.node if node.name in wanted]
    instrument = Instrument(model, pair, question.threads, scales, targets=question.targets)
    constants = constants_of(model, pair, scales, nodes)
    # Constants have one value for all samples: they are measured once, below.
    types_by_tensor = {
        k: v for k, v in held_in(model, pair, scales, nodes).items() if k not in constants
    }
    # Advice asks for tensors that no explained layer reads, such as the squares in a norm.
    if pair.low in LOW_TYPES:
        types_by_tensor |= dict.fromkeys(question.tensors, LOW_TYPES[pair.low])
    emulated = emulates(model)
    brief, chooses = question.brief or not emulated, question.choices and emulated
    watched = (
        watched_under(instrument, types_by_tensor, question.samples, None)
        if brief
        else watch(instrument, types_by_tensor, question.samples)
    )
    watched.magnitudes.update(constants)
    alone = {} if brief else _alone(question, instrument, nodes, watched)
    summed = _summed(question, instrument, nodes, watched)
    steps = StepValues() if brief else step_values(instrument, nodes, question.samples)
    spread = births(instrument.view, watched)
    broken = {birth.layer for birth in spread if birth.output is not None}
    counts, small, layers = whole_numbers(model), magnified(model), []
    for node in nodes:
        harm = alone.get(node.name)
        read, stored = (
            [(name, watched.magnitudes[name]) for name in names if name in watched.magnitudes]
            # An 8-bit layer stores in the high type.
            for names in (read_low(node, pair), () if pair.low in QUANTIZED else node.output)
        )
        observed = Observed(
            op_type=node.op_type,
            inputs=[tensor for tensor in read if tensor[0] not in constants],
            outputs=stored,
            weights=[tensor for tensor in read if tensor[0] in constants],
            error_out=harm.error_out if harm else None,
            summed=summed.get(node.name, 0),
            steps=instrument.recurrences.has_steps(node)
            or instrument.semantics.inside(node) is Inside.STEPS,
            between=steps.by_layer.get(node.name, {}),
            counts=counts,
            magnified=small | steps.magnified,
            harmless=node.name not in broken and _harmless(question, node.name, harm),
        )
        layers.append(_finding(question, node.name, observed, harm))
    findings = Findings(
        low=pair.low,
        layers=layers,
        spread=spread,
        selections=selections(instrument, question.samples, watched.broken) if chooses else [],
        stopped=shortened(watched.stopped),
    )
    return findings, watched


def _harmless(question: Question, layer: str, harm: Harm | None) -> bool:
    """Tell whether outputs are only off by rounding while the layer runs low."""
    if question.pair.low in QUANTIZED or question.drop_errors.get(layer) is not None:
        return False
    rounding = LOW_TYPES[question.pair.low].unit
    return harm is not None and harm.hurts is not None and harm.hurts.error <= ROUNDINGS * rounding


def _summed(
    question: Question,
    instrument: Instrument,
    nodes: Sequence[onnx.NodeProto],
    watched: WatchedTensors,
) -> dict[str, int]:
    """Return the number of values in each sum that a layer stores, where its mean is largest."""
    by_sample: dict[int, list[onnx.NodeProto]] = {}
    for node in nodes:
        by_sample.setdefault(_telling(node, watched), []).append(node)
    counts: dict[str, int] = {}
    for number, some in by_sample.items():
        counts |= instrument.summed(some, question.samples[number])
    return counts


def _finding(question: Question, layer: str, observed: Observed, harm: Harm | None) -> Finding:
    pair = question.pair
    cause, evidence, figures = _judged(observed, pair)
    error = question.drop_errors.get(layer)
    if harm is not None and harm.stopped:
        evidence = f"{evidence}; without it the model does not run: {shortened(harm.stopped)}"
    return Finding(
        layer=layer,
        kept=layer in set(question.kept),
        low=pair.low,
        high=pair.high,
        cause=cause,
        evidence=evidence,
        figures={**figures, "drop_error": error},
        histogram=histogram_of(observed, scaled=pair.low in QUANTIZED),
        hurts=harm.hurts if harm else None,
    )


def _judged(observed: Observed, pair: Pair) -> tuple[str, str, dict[str, Any]]:
    """Return the cause, its evidence, and the figures, by what the low type is."""
    if pair.low in QUANTIZED:
        kind = QUANTIZED[pair.low]
        return *quantized_cause_of(observed, kind), quantized_figures_of(observed, kind)
    low = LOW_TYPES[pair.low]
    return *cause_of(observed, low), figures_of(observed, low)


def _alone(
    question: Question,
    instrument: Instrument,
    nodes: Sequence[onnx.NodeProto],
    watched: WatchedTensors,
) -> dict[str, Harm]:
    """Return what each of the layers does when it runs low; of very many only the first ones."""
    model = question.model
    index = {str(name): i for i, name in enumerate(model.table.names)}
    high = Plan.all_high(len(index))
    answer = Plan.of(index[name] for name in question.kept if name in index)
    cases: dict[str, LoweredLayer] = {}
    for node in [candidate for candidate in nodes if candidate.name in index][:MOST_RUN_ALONE]:
        outputs = [name for name in node.output if model.elem_types.get(name) == _FLOAT]
        if outputs:
            cases[node.name] = LoweredLayer(
                index=index[LayerName(node.name)],
                outputs=outputs,
                rest=answer if node.name in question.kept else high,
                sample=_telling(node, watched),
                follow=len(cases) < MOST_FOLLOWED,
            )
    return harms(instrument, cases, question.samples)


def _telling(node: onnx.NodeProto, watched: WatchedTensors) -> int:
    """Return the sample in which the outputs of a node are largest, or else its inputs."""
    for names in (node.output, node.input):
        magnitudes = [watched.magnitudes[name] for name in names if name in watched.magnitudes]
        worst = max(magnitudes, key=lambda tensor: tensor.largest, default=None)
        if worst is not None and worst.place is not None:
            return worst.place.sample
    return 0
