"""Inputs on whose size errors depend, and an answer at the ends of their ranges.

A low type has digits, not decimals: at 1,000 FP16 has steps of 0.5. Most operators pass that on as
a share of the value. Some do not: an angle, an index or a part of a whole is lost.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.classify import FOLLOWERS
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.judging.inputs.copies import at_ends, range_by_type
from precision_bisect.pipeline.evaluators import evaluator
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample, Search
from precision_bisect.runs.results.other_targets import InputRange
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName, Outcome, Phase, Proposal, SampleSet

_GROWING = frozenset(
    ("Sin", "Cos", "Tan", "CumSum", "Range", "Mod", "Floor", "Ceil", "Round", "GridSample")
)
_PRODUCTS = frozenset(("MatMul", "Gemm", "Einsum"))
_ARITHMETIC = frozenset(
    ("Cast", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sum", "Min", "Max", "Clip", "Where")
)
_LOOK_UP = frozenset(("Gather", "GatherElements", "GatherND"))
# Operators that pass on how large a value is. At all others the way ends: a norm and a Softmax
# forget it, and an embedding knows nothing of the size of an id.
_PASSING = (FOLLOWERS - _LOOK_UP) | _ARITHMETIC | _PRODUCTS
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
                # A Cast to integers ends the float's way; another reading goes on.
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
RANGE = "range:"
"""What cases are called in which samples are moved to the ends of an input's range."""


class _RangedInput(NamedTuple):
    """An input, what its size reaches, and samples moved to the ends of its range, if it has one.

    `tensors` tell its size. Plans are judged at its ends in a `case`.
    """

    name: str
    values: Sequence[NDArray[Any]]
    sized: Sequence[SizedInput]
    ends: tuple[float, float] | None
    end_samples: Sequence[Sample]
    tensors: Sequence[str]
    case: CaseName


def input_ranges(prepared: Prepared, cases: Cases, plan: Plan) -> Search[list[InputRange]]:
    """Return the inputs whose range matters, and have the emulator judge an answer at its ends.

    An answer stands without: whatever fails in here is left out.
    """
    try:
        inputs = list(_looked_at(prepared))
        largest = _largest(prepared, inputs)
    except Exception:  # whatever is wrong in here, the search is done
        return []
    range_by_case = {
        ranged.case: input_range
        for ranged in inputs
        if (input_range := _input_range(prepared, ranged, largest)) is not None
    }
    proposals = []
    for ranged in inputs:
        if ranged.case in range_by_case and ranged.end_samples and prepared.emulator is not None:
            cases.add(ranged.case, partial(_at_ends, prepared, ranged.end_samples))
            proposals.append(
                Proposal(
                    plan=plan,
                    phase=Phase.EXPLANATION,
                    samples=SampleSet.HELD_OUT,
                    case=ranged.case,
                    reason=f"the answer at the ends of {ranged.name}",
                )
            )
    outcomes = (yield tuple(proposals)) if proposals else ()
    for proposal, outcome in zip(proposals, outcomes, strict=True):
        range_by_case[proposal.case] = _with_outcome(range_by_case[proposal.case], outcome)
    return [*range_by_case.values()]


def _looked_at(prepared: Prepared) -> Iterator[_RangedInput]:
    """Yield the inputs that are looked at, those first whose range was given."""
    case = prepared.case
    ranges = case.options.ranges
    sized_by_input: dict[str, list[SizedInput]] = {name: [] for name in ranges}
    for sized in sized_inputs(case.model):
        sized_by_input.setdefault(sized.input, []).append(sized)
    for name, some in list(sized_by_input.items())[:MOST_INPUTS]:
        finite = (feed[name][np.isfinite(feed[name])] for feed in case.samples)
        values = [array for array in finite if array.size]
        if not values:
            continue
        ends = ranges.get(name) or range_by_type(values[0])
        moved = case.samples[:MOST_MOVED_SAMPLES]
        end_samples = [] if ends is None else at_ends(moved, name, ends)
        tensors = list(dict.fromkeys(operator.tensor for operator in some)) or [name]
        # A trial of its own case: its samples are not those that the answer is judged by.
        beside = case.named(f"{RANGE}{name}" + f",{TF32}" * case.options.engine.in_tf32)
        yield _RangedInput(name, values, some, ends, end_samples, tensors, beside)


# The largest magnitude of a tensor in FP32 in the samples (""), or at the ends of an input.
_Largest: TypeAlias = Mapping[tuple[str, str], float]


def _largest(prepared: Prepared, inputs: Sequence[_RangedInput]) -> _Largest:
    """Return how large the tensors are that tell the size of inputs, 0 without samples."""
    case = prepared.case
    largest = defaultdict[tuple[str, str], float](float)
    feeds = [("", feed) for feed in case.fed]
    feeds += [(ranged.name, feed) for ranged in inputs for feed in ranged.end_samples]
    tensors = list(dict.fromkeys(tensor for ranged in inputs for tensor in ranged.tensors))
    if not tensors:
        return largest
    instrument = Instrument(case.model, case.pair, case.options.threads)
    for values in instrument.shown(tensors, [feed for _, feed in feeds], None):
        where, _ = feeds[values.sample]
        for tensor, array in values.exact.items():
            magnitude = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
            largest[tensor, where] = max(largest[tensor, where], magnitude)
    return largest


def _input_range(prepared: Prepared, ranged: _RangedInput, largest: _Largest) -> InputRange | None:
    """Return what is known of an input without a trial; None where its size does not matter."""
    half, both = LOW_TYPES.get(prepared.case.options.low, FP16), ("", ranged.name)
    most = {name: max(largest[name, where] for where in both) for name in ranged.tensors}
    # Where steps are fine enough at that size, it may be as large as it likes.
    operators = [op for op in ranged.sized if _matters(op, _step(most[op.tensor], half))]
    if not operators and ranged.name not in prepared.case.options.ranges:
        return None
    chosen = [operator.tensor for operator in operators] or ranged.tensors
    reads, beyond = (max(largest[tensor, where] for tensor in chosen) for where in both)
    return InputRange(
        input=ranged.name,
        operators=[operator.op_type for operator in operators],
        layers=[operator.node for operator in operators],
        samples=[float(min(map(np.min, ranged.values))), float(max(map(np.max, ranged.values)))],
        reads=reads,
        step=_step(reads, half),
        range=None if ranged.ends is None else [*map(float, ranged.ends)],
        reads_at_ends=beyond if ranged.end_samples else None,
        step_at_ends=_step(beyond, half) if ranged.end_samples else None,
    )


def _matters(sized: SizedInput, step: float) -> bool:
    return sized.op_type in _ALWAYS or (step > 1.0 if sized.whole else step >= TOLD)


def _at_ends(prepared: Prepared, end_samples: Sequence[Sample]) -> Evaluator:
    """Return what has the emulator judge each of these samples that FP32 computes by itself."""
    numbers = range(len(end_samples))
    sets = SampleSets(
        feeds=end_samples, pool=(), reference=(), held_out=numbers, refer=prepared.refer
    )
    assert prepared.emulator is not None
    return replace(evaluator(prepared, prepared.emulator), samples=sets, copies=None)


def _with_outcome(input_range: InputRange, outcome: Outcome) -> InputRange:
    """Return a range with what an answer came to at its ends."""
    one_by_one = outcome.evidence.one_by_one
    count = 0 if one_by_one is None else len(one_by_one.numbers) - len(one_by_one.unjudged)
    if one_by_one is None or not count:
        return input_range
    return replace(
        input_range,
        passed=outcome.passed,
        error=outcome.error,
        variants=count,
        failed=len(one_by_one.failed),
    )


def _step(value: float, half: LowType) -> float:
    """Return the distance of two neighbours of the low type at a value."""
    if not 0 < value < math.inf:
        return 0.0
    return 2.0 ** (math.floor(math.log2(value)) + 1 - half.digits)
