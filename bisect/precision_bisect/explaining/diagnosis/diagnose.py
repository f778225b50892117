"""The diagnosis of some layers of a model, from the samples of a run.

It runs once, after the search: asking an engine for extra outputs changes what it fuses, so the
search itself never does. Everything is read off ONNX Runtime in FP32 and off the emulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module

import onnx

from precision_bisect.errors import shortened
from precision_bisect.explaining.diagnosis import causes
from precision_bisect.explaining.diagnosis.causes.observed import Observed, Operand
from precision_bisect.explaining.diagnosis.findings import Finding, Findings, Sign, Signs
from precision_bisect.explaining.diagnosis.holding import (
    Magnitudes,
    constants_of,
    held_in,
    magnified,
    read_low,
)
from precision_bisect.explaining.diagnosis.hurting import MOST_FOLLOWED, LoweredLayer, see_harms
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.explaining.diagnosis.selections import selections
from precision_bisect.explaining.diagnosis.watched_tensors import (
    WatchedTensors,
    births,
    watch,
    watched_under,
)
from precision_bisect.graphs.graph import copied, refill, showing
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import KINDS, LOW_TYPES, QUANTIZED
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.types import infer_elem_types
from precision_bisect.graphs.weights import LARGE_BYTES, total_bytes
from precision_bisect.graphs.whole_numbers import whole_numbers
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend
from precision_bisect.runs.results.causes import Cause
from precision_bisect.search.case import Case
from precision_bisect.settings.targets import Inside

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
    """Which layers of a case to explain: the `kept` ones of an answer, and some `near` misses.

    `drop_errors` has the error of the answer without a layer, on the tolerance's scale, where it
    was measured. `tensors` are further ones whose magnitudes in a 16-bit type are wanted. Of the
    targets the one that stores most inside layers is emulated. If the question is `brief`, no
    layer is emulated: else they run low one by one, to see what each does. `choices` asks what
    chooses rows of the outputs otherwise. An `emulator` of the case may have its graph at hand.
    """

    case: Case
    kept: Sequence[str]
    near: Sequence[str] = ()
    tensors: Sequence[str] = ()
    drop_errors: Mapping[str, float | None] = field(default_factory=dict)
    brief: bool = False
    choices: bool = True
    emulator: Backend | None = None


def emulates(model: Model) -> bool:
    """Tell whether a model is small enough to be emulated once more after the search."""
    few = len(model.table.candidates) <= MOST_EMULATED
    return few and total_bytes(model.weights) <= LARGE_BYTES


def diagnose(question: Question) -> tuple[Findings, WatchedTensors]:
    """Return findings without advice, in network order, and the tensors seen on the way.

    Raises ModelError if the low type needs an opset that the model cannot be converted to,
    RuntimeError where ONNX Runtime cannot run.
    """
    case = question.case
    model, pair, scales, samples = case.model, case.pair, case.scales, case.fed
    wanted = {*question.kept, *question.near}
    nodes = [node for node in model.proto.graph.node if node.name in wanted]
    instrument = Instrument(
        model,
        pair,
        case.options.threads,
        scales,
        targets=case.options.targets,
        emulator=question.emulator,
    )
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
        watched_under(instrument, types_by_tensor, samples, None)
        if brief
        else watch(instrument, types_by_tensor, samples)
    )
    watched.magnitudes.update(constants)
    alone = {} if brief else _alone(question, instrument, nodes, watched)
    summed = _summed(question, instrument, nodes, watched)
    between, small_between = _between(question, instrument, () if brief else nodes)
    spread = births(instrument.view, watched.broken)
    broken = {birth.layer for birth in spread if birth.output is not None}
    whole = whole_numbers(model)
    counts, small, layers = whole.from_integers | whole.to_integers, magnified(model), []
    for node in nodes:
        lowered, read = alone.get(node.name), read_low(node, pair)
        names_by_kind = {
            # An 8-bit layer stores in the high type.
            "output": () if pair.low in QUANTIZED else node.output,
            "input": [name for name in read if name not in constants],
            "weight": [name for name in read if name in constants],
        }
        observed = Observed(
            op_type=node.op_type,
            low=KINDS[pair.low],
            tensors=[
                Operand(what, name, watched.magnitudes[name])
                for what, names in names_by_kind.items()
                for name in names
                if name in watched.magnitudes
            ],
            error_out=lowered.largest(lowered.outputs) if lowered else None,
            summed=summed.get(node.name, 0),
            steps=instrument.recurrences.has_steps(node)
            or instrument.semantics.inside(node) is Inside.STEPS,
            between=between.get(node.name, ()),
            counts=counts,
            magnified=small | small_between,
            harmless=node.name not in broken and _harmless(question, node.name, lowered),
        )
        layers.append(_finding(question, node.name, observed, lowered))
    findings = Findings(
        low=pair.low,
        layers=layers,
        spread=spread,
        selections=selections(instrument, samples, watched.broken) if chooses else [],
        stopped=shortened(watched.stopped),
    )
    return findings, watched


def _harmless(question: Question, layer: str, lowered: LoweredLayer | None) -> bool:
    """Tell whether outputs are only off by rounding while the layer runs low."""
    if question.case.pair.low in QUANTIZED or question.drop_errors.get(layer) is not None:
        return False
    hurts, rounding = lowered.hurts if lowered else None, LOW_TYPES[question.case.pair.low].unit
    return hurts is not None and hurts.error <= ROUNDINGS * rounding


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
        counts |= instrument.summed(some, question.case.fed[number])
    return counts


def _finding(
    question: Question, layer: str, observed: Observed, lowered: LoweredLayer | None
) -> Finding:
    cause, evidence = _cause_of(observed)
    if lowered is not None and lowered.stopped:
        words, reason = "without it the model does not run: {reason}", shortened(lowered.stopped)
        evidence = evidence.also(Sign(words, reason=reason))
    candidates = question.case.model.table.candidates
    operator, module = next(
        ((node.op_type, node.module) for node in candidates if node.name == layer), ("", "")
    )
    return Finding(
        layer=layer,
        operator=operator,
        module=module,
        kept=layer in set(question.kept),
        low=question.case.pair.low,
        high=question.case.pair.high,
        cause=cause,
        evidence=evidence,
        figures={**observed.figures, "drop_error": question.drop_errors.get(layer)},
        histogram=observed.histogram,
        hurts=lowered.hurts if lowered else None,
    )


def _cause_of(observed: Observed) -> tuple[Cause, Signs]:
    """Return the gravest cause that is seen, with what shows it."""
    low, besides = observed.low, list[Sign]()
    if low.name in QUANTIZED:
        left = observed.figures["decibels"]
        besides = [Sign("{low} leaves {left:.0f} dB of it", low=low.name, left=left)]
    for cause in Cause:
        signs = [*import_module(f"{causes.__name__}.{cause}").find(observed)]
        if cause is Cause.OVERFLOW and observed.harmless:
            besides = [Sign("{beyond}, and does no harm", beyond=sign) for sign in signs]
        elif signs:
            return cause, Signs(*signs, *besides)
    raise AssertionError("every layer rounds")


def _alone(
    question: Question,
    instrument: Instrument,
    nodes: Sequence[onnx.NodeProto],
    watched: WatchedTensors,
) -> dict[str, LoweredLayer]:
    """Return what each of the layers does when it runs low; of very many only the first ones."""
    model = question.case.model
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
                # A kept layer is lowered alone in the answer; the others hurt in what is else
                # FP32.
                rest=answer if node.name in question.kept else high,
                sample=_telling(node, watched),
                follow=len(cases) < MOST_FOLLOWED,
            )
    see_harms(instrument, cases, question.case.fed)
    return cases


def _telling(node: onnx.NodeProto, watched: WatchedTensors) -> int:
    """Return the sample in which the outputs of a node are largest, or else its inputs."""
    for names in (node.output, node.input):
        magnitudes = [watched.magnitudes[name] for name in names if name in watched.magnitudes]
        worst = max(magnitudes, key=lambda tensor: tensor.largest, default=None)
        if worst is not None and worst.place is not None:
            return worst.place.sample
    return 0


def _between(
    question: Question, instrument: Instrument, nodes: Sequence[onnx.NodeProto]
) -> tuple[Mapping[str, Sequence[Operand]], frozenset[str]]:
    """Return what operators that are taken apart store between their steps, as FP32 has it.

    By layer; and which of these tensors are `magnified`. Raises RuntimeError.
    """
    model, low = instrument.model, LOW_TYPES.get(instrument.pair.low)
    apart = [node for node in nodes if instrument.semantics.inside(node) is Inside.STEPS]
    if low is None or not apart:
        return {}, frozenset()
    proto = copied(model.proto)
    proto.graph.ClearField("value_info")
    steps = {node.name: instrument.semantics.unrounded(node) for node in apart}
    refill(proto.graph.node, [s for n in model.proto.graph.node for s in steps.get(n.name, [n])])
    types = infer_elem_types(proto, model.weights)
    # What is made of constants alone, such as an epsilon, is no step.
    made = {
        node.name: _made_between(steps[node.name], {*node.input}, {*node.output}, types)
        for node in apart
    }
    names = [name for op_types in made.values() for name in op_types]
    session = Session(showing(proto, names), model.weights, instrument.threads)
    magnitudes = {name: Magnitudes() for name in names}
    for number, sample in enumerate(question.case.fed):
        for name, array in session.run(sample, names).items() if names else ():
            magnitudes[name].add(array, low, number)
    by_layer = {
        layer: [Operand(f"{kind} inside", name, magnitudes[name]) for name, kind in kinds.items()]
        for layer, kinds in made.items()
    }
    return by_layer, magnified(replace(model, proto=proto))


def _made_between(
    steps: Sequence[onnx.NodeProto], reached: set[str], outputs: set[str], types: Mapping[str, int]
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
