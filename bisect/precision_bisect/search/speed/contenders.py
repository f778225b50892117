"""Plans of several kinds that may be fast and hold, for an engine to decide between.

Estimates rank plans badly, 0.7 in the median, so variety counts.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.search.rounding_law import worst
from precision_bisect.search.speed.cheapest import cheapest
from precision_bisect.search.speed.moves import filled
from precision_bisect.trial import Outcome

BEYOND = 2.0
"""Times the law's limit that some plans reach: real factors of the law are 0.3 to 1.2."""
SLOWEST = 1.2
"""Times of FP32 and of the answer by estimate, above which no plan is built."""


def contenders(
    costs: CostGraph,
    errors: Sequence[float],
    aim: float,
    known: Sequence[Plan],
    *,
    full_batch: CostGraph | None = None,
    multiplying: Collection[int] = (),
) -> list[Plan]:
    """Return plans that may be fast and hold, of each kind the cheapest first, in turns of kinds.

    `errors` has what each layer adds if it alone runs low, `aim` what the law allows, `known` the
    answer and others that hold. The kinds: the cheapest that the law allows, for the samples'
    batch, a full one and somewhat beyond the law; known ones with kernels whole, kept or low;
    their gaps closed; low in what is `multiplying` alone; what is known.
    """
    pinned = frozenset(layer for layer, error in enumerate(errors) if math.isinf(error))
    everything = frozenset(range(costs.size))
    kinds = (
        cheapest(costs, errors, aim, known, pinned),
        [Plan.of(layers) for plan in known for layers in _whole_kernels(costs, plan)],
        cheapest(full_batch or costs, errors, aim, known[:1], pinned, seed=2),
        cheapest(costs, errors, BEYOND * aim, known[:1], pinned, seed=1),
        [Plan.of(filled(costs, plan.kept)) for plan in known],
        [Plan.of(everything.difference(multiplying) | pinned)],
        known,
    )
    by_kind = [sorted(set(kind), key=lambda plan: (costs.time(plan.kept), plan)) for kind in kinds]
    # In turns: a few trials see each kind, whichever of them the estimate is wrong about.
    in_turns = (plan for turn in zip_longest(*by_kind) for plan in turn if plan is not None)
    # Estimates are off by some share, so somewhat slower plans are worth a look, others are not.
    most_ms = SLOWEST * max(costs.time(layers) for layers in (everything, known[0].kept))
    return [
        plan
        for plan in dict.fromkeys(in_turns)
        if len(plan) < costs.size and costs.time(plan.kept) <= most_ms
    ]


def _whole_kernels(costs: CostGraph, plan: Plan) -> Iterator[frozenset[int]]:
    """Yield a plan with each fused kernel that it splits kept whole, and with each low whole.

    Such a kernel computes in FP32 inside, whatever it reads and writes.
    """
    pieces = [fusion.layers for fusion in costs.fusions if plan.kept.intersection(fusion.layers)]
    if pieces:
        layers = frozenset(layer for kernel in pieces for layer in kernel)
        yield filled(costs, plan.kept | layers)
        yield plan.kept - layers


def law_factor(
    errors: Sequence[float], outcomes: Mapping[Plan, Outcome], floor: float = 0.0
) -> float:
    """Return the largest error of plans over what the law forecasts, 1 where none tells.

    It is what low layers add to the `floor`, the error with every layer high.
    """
    factors = []
    for plan, outcome in outcomes.items():
        low = (error for layer, error in enumerate(errors) if layer not in plan.kept)
        forecast, error = math.hypot(*low), worst(outcome)
        if error is not None and floor < error < math.inf and 0 < forecast < math.inf:
            factors.append(math.sqrt(error**2 - floor**2) / forecast)
    return max(factors, default=1.0)
