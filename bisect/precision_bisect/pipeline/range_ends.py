"""Which inputs the error grows with, and what an answer comes to at the ends of their ranges."""

import math
from collections.abc import Sequence

import numpy as np

from precision_bisect.diagnosis.instrument import Instrument
from precision_bisect.inputs.made_variants import at_ends, range_by_type
from precision_bisect.inputs.reference import non_finite
from precision_bisect.model.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.model.sized_inputs import SizedInput, sized_inputs
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.results.input_ranges import InputRange
from precision_bisect.search.evaluation import judged
from precision_bisect.trial import Verdict

MOST_INPUTS = 4
MOST_SAMPLES = 4
"""Inputs that are looked at, and samples that are moved to the ends of each range. Bounds."""
TOLD = 2.0**-7
"""The step of the low type from which an operator is told: FP16 has it from 8 on. A bound of
taste."""
_ALWAYS = ("GridSample",)


def input_ranges(prepared: Prepared, plan: Plan, *, late: bool) -> list[InputRange]:
    """Return the inputs whose range matters; tried by the emulator, unless it is `late`.

    An answer stands without: whatever fails in here is left out.
    """
    try:
        found = sized_inputs(prepared.model)
        known = {each.input for each in found}
        found += [SizedInput(n, "", "", n) for n in prepared.options.ranges if n not in known]
        # What was asked for comes first.
        found.sort(key=lambda each: each.input not in prepared.options.ranges)
        return [
            each
            for sized in found[:MOST_INPUTS]
            if (each := _looked_at(prepared, plan, sized, late=late)) is not None
        ]
    except (KeyboardInterrupt, Exception):  # whatever is wrong in here, the search is done
        return []
    finally:
        prepared.rest()


def _looked_at(
    prepared: Prepared, plan: Plan, sized: SizedInput, *, late: bool
) -> InputRange | None:
    name, half = sized.input, LOW_TYPES.get(prepared.options.low, FP16)
    feeds = prepared.samples
    values = [feed[name] for feed in feeds if feed[name].size]
    if not values:
        return None
    ends = prepared.options.ranges.get(name) or range_by_type(values[0])
    made = [] if ends is None else at_ends(feeds[:MOST_SAMPLES], name, ends)
    reads, at_end = (_largest(prepared, sized, some) for some in (feeds, made))
    steps = [_step(each, half) for each in (reads, at_end)]
    if not _matters(sized, prepared, max(steps)):
        return None
    errors = [] if late else _errors(prepared, plan, made)
    failing = [error for error, passed in errors if not passed]
    told = [error for error, _ in errors if error is not None]
    return InputRange(
        input=name,
        operator=sized.op_type,
        layer=sized.node,
        samples=[float(min(map(np.min, values))), float(max(map(np.max, values)))],
        reads=reads,
        step=steps[0],
        range=None if ends is None else [*map(float, ends)],
        reads_at_ends=at_end if made else None,
        step_at_ends=steps[1] if made else None,
        passed=not failing if errors else None,
        error=max(told, default=None),
        variants=len(errors),
        failed=len(failing),
    )


def _matters(sized: SizedInput, prepared: Prepared, step: float) -> bool:
    if not sized.op_type or sized.op_type in _ALWAYS:
        return True
    # Whole numbers are exact up to where steps are 1.
    made_float = sized.op_type == "Cast" and not _reads_float(prepared, sized)
    return step > 1.0 if made_float else step >= TOLD


def _reads_float(prepared: Prepared, sized: SizedInput) -> bool:
    nodes = {node.name: node for node in prepared.model.proto.graph.node}
    return sized.tensor in nodes[sized.node].input


def _largest(prepared: Prepared, sized: SizedInput, feeds: Sequence[Sample]) -> float:
    """Return the largest magnitude of the tensor in FP32, 0 for no feeds."""
    if not feeds:
        return 0.0
    pair = Pair(low=prepared.options.low, high=prepared.options.high)
    instrument = Instrument(prepared.model, pair, prepared.options.threads)
    seen = instrument.exactly([sized.tensor], feeds)
    return max(float(np.abs(values[sized.tensor]).max(initial=0.0)) for _, values in seen)


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
        told = judged(prepared.emulator, plan, [feed], [exact], prepared.comparator)
        found.append((told.error, told.verdict is Verdict.PASS))
    return found
