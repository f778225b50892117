"""Which inputs the error grows with, and what an answer comes to at the ends of their ranges."""

import math
from collections.abc import Sequence

import numpy as np

from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.graphs.sized_inputs import SizedInput, sized_inputs
from precision_bisect.judging.inputs.made_variants import at_ends, range_by_type
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.other_targets import InputRange
from precision_bisect.search.evaluation import judged_once
from precision_bisect.trial import Verdict

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
    found: dict[str, list[SizedInput]] = {name: [] for name in prepared.options.ranges}
    try:
        for each in sized_inputs(prepared.model):
            found.setdefault(each.input, []).append(each)
        looked = [
            _looked_at(prepared, plan, name, some, late=late)
            for name, some in list(found.items())[:MOST_INPUTS]
        ]
    except (KeyboardInterrupt, Exception):  # whatever is wrong in here, the search is done
        return []
    finally:
        prepared.rest()
    return [each for each in looked if each is not None]


def _looked_at(
    prepared: Prepared, plan: Plan, name: str, sized: Sequence[SizedInput], *, late: bool
) -> InputRange | None:
    half, ranges = LOW_TYPES.get(prepared.options.low, FP16), prepared.options.ranges
    values = [feed[name] for feed in prepared.samples if feed[name].size]
    if not values:
        return None
    ends = ranges.get(name) or range_by_type(values[0])
    made = [] if ends is None else at_ends(prepared.samples[:MOST_MOVED_SAMPLES], name, ends)
    tensors = list(dict.fromkeys(each.tensor for each in sized)) or [name]
    known, at_end = (_largest(prepared, tensors, some) for some in (prepared.samples, made))
    largest = {each: max(known[each], at_end[each]) for each in tensors}
    told = [each for each in sized if _matters(each, _step(largest[each.tensor], half))]
    if not told and name not in ranges:
        return None
    errors = [] if late else _errors(prepared, plan, made)
    figures = [error for error, _ in errors if error is not None]
    chosen = [each.tensor for each in told] or tensors
    reads, beyond = (max(some[each] for each in chosen) for some in (known, at_end))
    return InputRange(
        input=name,
        operators=[each.op_type for each in told],
        layers=[each.node for each in told],
        samples=[float(min(map(np.min, values))), float(max(map(np.max, values)))],
        reads=reads,
        step=_step(reads, half),
        range=None if ends is None else [*map(float, ends)],
        reads_at_ends=beyond if made else None,
        step_at_ends=_step(beyond, half) if made else None,
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
    found = dict.fromkeys(tensors, 0.0)
    if not feeds:
        return found
    instrument = Instrument(prepared.model, prepared.pair, prepared.options.threads)
    for shown in instrument.shown(tensors, feeds, None):
        for each, array in shown.exact.items():
            found[each] = max(found[each], float(np.abs(array).max(initial=0.0)))
    return found


def _step(value: float, half: LowType) -> float:
    """Return the distance of two neighbours of the low type at a value."""
    if not 0 < value < math.inf:
        return 0.0
    return 2.0 ** (math.floor(math.log2(value)) + 1 - half.digits)


def _errors(
    prepared: Prepared, plan: Plan, made: Sequence[Sample]
) -> list[tuple[float | None, bool]]:
    """Return the error of each made-up sample that FP32 computes, and whether it passes."""
    found: list[tuple[float | None, bool]] = []
    if prepared.emulator is None:
        return found
    for feed in made:
        exact = prepared.refer(feed)
        if non_finite([exact]):
            continue
        told = judged_once(prepared.emulator, plan, [feed], [exact], prepared.comparator)
        found.append((told.error, told.verdict is Verdict.PASS))
    return found
