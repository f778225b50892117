"""The front of error against latency: the measured plans that no other beats in both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Pace
from precision_bisect.trial import JUDGED_KINDS, Outcome, SampleSet, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTrial:
    """A plan on the front.

    If nothing was timed, `latency_ms`, `spread_ms` and `speedup` (over all-high) are None; `cost`,
    the estimated milliseconds that keeping the layers costs, stands in. `error` is None where
    errors are no figures.
    """

    plan: Plan
    passed: bool
    error: float | None
    latency_ms: float | None = None
    spread_ms: float | None = None
    speedup: float | None = None
    cost: float | None = None

    @property
    def axes(self) -> tuple[float, float]:
        """What is compared, smaller is better: latency or else cost, and error."""
        error = (0.0 if self.passed else 1.0) if self.error is None else self.error
        speed = self.latency_ms if self.latency_ms is not None else self.cost
        return (math.inf if speed is None else speed, error)


def front(
    outcomes: Mapping[Plan, Outcome], high_ms: float | None, graph: CostGraph | None = None
) -> Sequence[FrontTrial]:
    """Return the plans that none beats in error and speed, the fastest first.

    `high_ms` is the latency with every layer high; None where nothing is timed, in which case
    `graph` says what plans cost. Plans whose outputs are not finite are left out.
    """
    points = [
        point
        for plan, outcome in sorted(outcomes.items())
        if (point := _point(plan, outcome, high_ms, graph)) is not None
    ]
    best: list[FrontTrial] = []
    # Sorted by speed, a plan is on the front if its error is below that of all faster ones.
    for point in sorted(points, key=lambda point: (point.axes, point.plan)):
        if not best or point.axes[1] < best[-1].axes[1]:
            best.append(point)
    return best


def judged_outcomes(trials: Sequence[Trial], samples: SampleSet) -> dict[Plan, Outcome]:
    """Return the outcomes of the plans judged on these samples; of several builds the freshest."""
    found: dict[Plan, Outcome] = {}
    # In the order of kinds: the outcome of a later, fresh build replaces that of the first.
    for kind in JUDGED_KINDS:
        for trial in trials:
            asked = trial.proposal
            if asked.kind is kind and asked.samples == samples and trial.outcome.verdict:
                found[asked.plan] = trial.outcome
    return found


def _point(
    plan: Plan, outcome: Outcome, high_ms: float | None, graph: CostGraph | None
) -> FrontTrial | None:
    error = outcome.error
    if outcome.verdict is None or (error is not None and not math.isfinite(error)):
        return None
    if high_ms is None:
        if graph is None:
            return None
        return FrontTrial(
            plan=plan, passed=outcome.passed, error=error, cost=graph.cost(plan.kept)
        )
    pace = Pace.of(outcome.evidence.latency, high_ms)
    if pace is None:
        return None
    return FrontTrial(
        plan=plan,
        passed=outcome.passed,
        error=error,
        latency_ms=pace.latency_ms(high_ms),
        spread_ms=pace.spread_ms(high_ms),
        speedup=pace.speedup,
    )
