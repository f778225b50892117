"""A verdict over outputs, whatever the comparator."""

import math
from collections.abc import Sequence

from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.judging.comparators.script import numbered
from precision_bisect.protocols import Comparator, Judgement, Sample, dropping
from precision_bisect.trial import Verdict


def judge_outputs(
    comparator: Comparator, outputs: Sequence[Sample], reference: Sequence[Sample]
) -> Judgement:
    """Judge for a comparator that need not know of NaN; copies may overflow in FP32, too."""
    trouble = non_finite(outputs) or non_finite(reference)
    layers = () if trouble else dropping(outputs)
    if layers:
        trouble = f"{layers[0]!r} reads NaN that FP32 has not, and drops it here"
    if trouble:
        return Judgement(verdict=Verdict.FAIL, error=math.inf, message=trouble, dropped_nan=layers)
    return numbered(comparator.judge(outputs, reference))
