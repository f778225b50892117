"""An answer on other targets than its own, and at the ends of the ranges of its inputs.

A low type has digits, not decimals: at 1,000 FP16 has steps of 0.5. Most operators pass that on as
a share of the value. Some do not: an angle, an index or a part of a whole is lost.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx

from precision_bisect.backends.backend_plugin import choose_backend
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.backends.emulation.semantics import Semantics
from precision_bisect.backends.emulation.tf32 import is_product
from precision_bisect.errors import in_words
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.classify import FOLLOWERS
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.judging.inputs.copies import at_ends, can_change, range_by_type
from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.evaluators import evaluator
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.other_targets import InputRange, OnTargets, Stored, WithTf32
from precision_bisect.search.evaluation import judged_once
from precision_bisect.search.rounding_law import worst
from precision_bisect.settings.targets import TARGETS, Inside, TargetName
from precision_bisect.trial import Phase, Proposal, SampleSet, Verdict

_DRAW = 10**6
"""The draw of copies that an answer is judged on; searches count theirs from 1."""

_Affected = Mapping[LayerName, Inside]


def other_targets(
    prepared: Prepared, plan: Plan, samples: SampleSet, *, late: bool
) -> list[OnTargets]:
    """Judge an answer of the emulator on its samples and on copies, as other targets compute it.

    Targets that compute the model as one of the run's own, or cannot run it, are left out. Nothing
    is evaluated if it is `late`. An answer stands without: whatever fails is told.
    """
    if not prepared.backend.emulated:
        return []
    options = prepared.options
    affected = {
        target: Semantics(prepared.model, target).affected(prepared.pair) for target in TARGETS
    }
    own = [affected[target] for target in options.targets]
    groups: list[tuple[_Affected, list[TargetName]]] = []
    for target, effects in affected.items():
        if target in prepared.unknown_to:
            continue
        alike = next((names for other, names in groups if other == effects), None)
        if alike is not None:
            alike.append(target)
        elif effects not in own:
            groups.append((effects, [target]))
    return [
        _judged(prepared, plan, samples, names, effects, late=late) for effects, names in groups
    ]


def _judged(
    prepared: Prepared,
    plan: Plan,
    samples: SampleSet,
    targets: Sequence[TargetName],
    affected: _Affected,
    *,
    late: bool,
) -> OnTargets:
    names = prepared.model.table.names
    kept = {names[i] for i in plan.indices if prepared.options.high == "fp32"}
    ops = {layer.name: layer.op_type for layer in prepared.model.table.layers}
    counts = Counter((ops[name], inside) for name, inside in affected.items() if name not in kept)
    stored = [Stored(op_type=op, inside=inside, layers=n) for (op, inside), n in counts.items()]
    report = OnTargets(targets=targets, passed=None, stored=stored)
    if late:
        return replace(report, message="the time was up")
    options = replace(prepared.options, target=targets[0])
    proposal = Proposal(
        plan=plan,
        phase=Phase.RECHECK,
        samples=samples,
        draw=0 if prepared.copies is None else _DRAW,
    )
    try:
        chosen = choose_backend(options, prepared.samples, prepared.work, scales=prepared.scales)
        outcome = evaluator(prepared, chosen.make(prepared.model))(proposal)
    except KeyboardInterrupt:
        return replace(report, message="interrupted")
    except Exception as error:  # whatever is wrong in here, the answer stands
        return replace(report, message=in_words(error))
    finally:
        prepared.rest()
    return replace(
        report,
        passed=None if outcome.verdict is None else outcome.passed,
        error=outcome.error,
        stability=outcome.evidence.stability,
        message="" if outcome.passed else outcome.message,
    )


def with_tf32(
    prepared: Prepared, answer: Plan, samples: SampleSet, *, late: bool
) -> WithTf32 | None:
    """Judge FP32 and an answer of the emulator with TF32's products; None where there are none.

    Nothing is evaluated if it is `late`. An answer stands without: whatever fails is told.
    """
    options, model = prepared.options, prepared.model
    if not prepared.backend.emulated or options.high != "fp32":
        return None
    view = View(model)
    if not any(is_product(node, view) for node in model.proto.graph.node):
        return None
    if late:
        return WithTf32(message="the time was up")
    draw = 0 if prepared.copies is None else _DRAW
    try:
        factors = draw > 0 and not can_change(prepared.samples)
        backend = forecaster(model, options, prepared.scales, factors=factors, tf32=True)
        judge = evaluator(replace(prepared, emulator=backend), backend)
        # A phase of few copies: this decides nothing, and is to cost little.
        fp32, outcome = (
            judge(Proposal(plan=plan, phase=Phase.CURVE, samples=samples, draw=draw))
            for plan in (prepared.everything, answer)
        )
    except KeyboardInterrupt:
        return WithTf32(message="interrupted")
    except Exception as error:  # whatever is wrong in here, the answer stands
        return WithTf32(message=in_words(error))
    finally:
        prepared.rest()
    return WithTf32(
        fp32_passed=None if fp32.verdict is None else fp32.passed,
        fp32_error=worst(fp32),
        passed=None if outcome.verdict is None else outcome.passed,
        error=worst(outcome),
    )


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
    nearest: dict[tuple[str, str], SizedInput] = {}
    for spec in model.inputs:
        for sized in _reached(model, readers, spec.name):
            nearest.setdefault((sized.input, sized.op_type), sized)
    return list(nearest.values())


def _reached(
    model: Model, readers: dict[str, list[onnx.NodeProto]], start: str
) -> Iterator[SizedInput]:
    visited, pending = {start}, deque([start])
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
            fresh = [output for output in node.output if output and output not in visited]
            visited.update(fresh)
            pending.extend(fresh)


def _carries(node: onnx.NodeProto, name: str) -> bool:
    """Tell whether an operator passes on what it reads here: no shapes, axes and conditions."""
    places = [i for i, tensor in enumerate(node.input) if tensor == name]
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
        kinds = [model.elem_types.get(tensor) for tensor in (name, out)]
        if kinds[0] in _INTEGERS and kinds[1] == _FLOAT:
            return out
        return name if kinds[0] == _FLOAT and kinds[1] in _INTEGERS else ""
    if op not in _GROWING or (op == "GridSample" and node.input[1] != name):
        return ""
    # A sum is as large as what it comes to, all others as what they read.
    tensor = out if op in ("CumSum", "Range") else name
    return tensor if model.elem_types.get(tensor) == _FLOAT else ""


MOST_INPUTS = 4
MOST_MOVED_SAMPLES = 4
"""Inputs that are looked at, and samples that are moved to the ends of each range. Bounds."""
TOLD = 2.0**-7
"""The step of the low type from which an operator is told: FP16 has it from 8 on, where an angle
is off by up to half of that, 0.004."""
_ALWAYS = ("GridSample",)


def input_ranges(prepared: Prepared, plan: Plan, *, late: bool) -> list[InputRange]:
    """Return the inputs whose range matters; tried by the emulator, unless it is `late`.

    An answer stands without: whatever fails in here is left out.
    """
    # What was asked for comes first.
    sized_by_input: dict[str, list[SizedInput]] = {name: [] for name in prepared.options.ranges}
    try:
        for sized in sized_inputs(prepared.model):
            sized_by_input.setdefault(sized.input, []).append(sized)
        looked = [
            _looked_at(prepared, plan, name, some, late=late)
            for name, some in list(sized_by_input.items())[:MOST_INPUTS]
        ]
    except (KeyboardInterrupt, Exception):  # whatever is wrong in here, the search is done
        return []
    finally:
        prepared.rest()
    return [input_range for input_range in looked if input_range is not None]


def _looked_at(
    prepared: Prepared, plan: Plan, name: str, sized: Sequence[SizedInput], *, late: bool
) -> InputRange | None:
    half, ranges = LOW_TYPES.get(prepared.options.low, FP16), prepared.options.ranges
    values = [feed[name] for feed in prepared.samples if feed[name].size]
    if not values:
        return None
    ends = ranges.get(name) or range_by_type(values[0])
    end_samples = (
        [] if ends is None else at_ends(prepared.samples[:MOST_MOVED_SAMPLES], name, ends)
    )
    tensors = list(dict.fromkeys(operator.tensor for operator in sized)) or [name]
    at_samples, at_end = (
        _largest(prepared, tensors, some) for some in (prepared.samples, end_samples)
    )
    largest = {tensor: max(at_samples[tensor], at_end[tensor]) for tensor in tensors}
    operators = [
        operator for operator in sized if _matters(operator, _step(largest[operator.tensor], half))
    ]
    if not operators and name not in ranges:
        return None
    errors = [] if late else _errors(prepared, plan, end_samples)
    figures = [error for error, _ in errors if error is not None]
    chosen = [operator.tensor for operator in operators] or tensors
    reads, beyond = (max(some[tensor] for tensor in chosen) for some in (at_samples, at_end))
    return InputRange(
        input=name,
        operators=[operator.op_type for operator in operators],
        layers=[operator.node for operator in operators],
        samples=[float(min(map(np.min, values))), float(max(map(np.max, values)))],
        reads=reads,
        step=_step(reads, half),
        range=None if ends is None else [*map(float, ends)],
        reads_at_ends=beyond if end_samples else None,
        step_at_ends=_step(beyond, half) if end_samples else None,
        passed=all(passed for _, passed in errors) if errors else None,
        error=max(figures, default=None),
        variants=len(errors),
        failed=sum(not passed for _, passed in errors),
    )


def _matters(sized: SizedInput, step: float) -> bool:
    return sized.op_type in _ALWAYS or (step > 1.0 if sized.whole else step >= TOLD)


def _largest(
    prepared: Prepared, tensors: Sequence[str], feeds: Sequence[Sample]
) -> dict[str, float]:
    """Return the largest magnitude of each tensor in FP32, 0 for no feeds."""
    largest = dict.fromkeys(tensors, 0.0)
    if not feeds:
        return largest
    instrument = Instrument(prepared.model, prepared.pair, prepared.options.threads)
    for values in instrument.shown(tensors, feeds, None):
        for tensor, array in values.exact.items():
            largest[tensor] = max(largest[tensor], float(np.abs(array).max(initial=0.0)))
    return largest


def _step(value: float, half: LowType) -> float:
    """Return the distance of two neighbours of the low type at a value."""
    if not 0 < value < math.inf:
        return 0.0
    return 2.0 ** (math.floor(math.log2(value)) + 1 - half.digits)


def _errors(
    prepared: Prepared, plan: Plan, end_samples: Sequence[Sample]
) -> list[tuple[float | None, bool]]:
    """Return the error of each made-up sample that FP32 computes, and whether it passes."""
    errors: list[tuple[float | None, bool]] = []
    if prepared.emulator is None:
        return errors
    for feed in end_samples:
        exact = prepared.refer(feed)
        if non_finite([exact]):
            continue
        judgement = judged_once(prepared.emulator, plan, [feed], [exact], prepared.comparator)
        errors.append((judgement.error, judgement.verdict is Verdict.PASS))
    return errors
