"""The layers that hurt most when they alone run low, without trying every one.

Groups of layers run low together, and the worst group is halved until single layers are left
(best-first search). It finds the worst layers if a group hurts at least as much as each of its
layers. Errors that cancel within a group can hide one.
"""

import heapq
import math
from collections.abc import Sequence

from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.protocols import Backend, BackendFailure
from precision_bisect.search.evaluation import judged_once
from precision_bisect.trial import SampleSet, Verdict


def worst_layers(prepared: Prepared, count: int) -> list[tuple[str, float]]:
    """Return the worst layers with their errors on the tolerance's scale, the worst first.

    A check that only passes or fails gives 0 or infinity; NaN counts as infinity. Raises
    RuntimeError without an emulator.
    """
    backend = prepared.emulator
    if backend is None:
        raise RuntimeError("this run has no emulator")
    names = prepared.model.table.names
    found: list[tuple[str, float]] = []
    # Negated: `heapq` gives the smallest first.
    groups = [(-_error(prepared, backend, range(len(names))), 0, len(names))]
    while groups and len(found) < count:
        # A single layer at the top is at least as bad as every group that is left.
        error, start, end = heapq.heappop(groups)
        if end - start == 1:
            found.append((names[start], -error))
            continue
        middle = (start + end) // 2
        for part in ((start, middle), (middle, end)):
            measured = _error(prepared, backend, range(*part))
            heapq.heappush(groups, (-measured, *part))
    return found


def _error(prepared: Prepared, backend: Backend, lowered: Sequence[int]) -> float:
    plan = prepared.everything.without(lowered)
    feeds, reference = prepared.sets[SampleSet.RANKING]
    try:
        found = judged_once(backend, plan, feeds, reference, prepared.comparator)
    except BackendFailure:
        return math.inf
    if found.error is None:
        return 0.0 if found.verdict is Verdict.PASS else math.inf
    return found.error
