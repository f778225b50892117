"""What is told of speed: the front of error against latency, and how an answer meets limits.

The front has the measured plans that no other beats in both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Pace, SpeedLimits
from precision_bisect.runs.results.speed_report import FrontPoint, SpeedReport
from precision_bisect.trial import JUDGED_KINDS, Latency, Outcome, SampleSet, Trial


def front(
    outcomes: Mapping[Plan, Outcome],
    high_ms: float | None,
    graph: CostGraph | None = None,
    names: Sequence[str] = (),
) -> Sequence[FrontPoint]:
    """Return the plans that none beats in error and speed, the fastest first.

    `high_ms` is the latency with every layer high; None where nothing is timed, in which case
    `graph` says what plans cost. Plans whose outputs are not finite are left out. `names` are the
    candidates'; without them no layers are listed.
    """
    points = [
        (point.axes, plan, point)
        for plan, outcome in outcomes.items()
        if (point := _point(plan, outcome, high_ms, graph)) is not None
    ]
    best: list[FrontPoint] = []
    # Sorted by speed, a plan is on the front if its error is below that of all faster ones.
    for (_, error), plan, point in sorted(points, key=lambda entry: entry[:2]):
        if not best or error < best[-1].axes[1]:
            kept = [names[i] for i in plan.indices] if names else ()
            best.append(replace(point, kept=kept))
    return best


def judged_outcomes(trials: Sequence[Trial], samples: SampleSet) -> dict[Plan, Outcome]:
    """Return the outcomes of the plans judged on these samples; of several builds the freshest."""
    outcomes: dict[Plan, Outcome] = {}
    # In the order of kinds: the outcome of a later, fresh build replaces that of the first.
    for kind in JUDGED_KINDS:
        for trial in trials:
            proposal = trial.proposal
            if proposal.kind is kind and proposal.samples == samples and trial.outcome.verdict:
                outcomes[proposal.plan] = trial.outcome
    return outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The judged trials of a run on one sample set, as far as they tell of speed.

    `graph` gives estimates if nothing was timed and speed counts all the same, else it is None.
    """

    trials: Sequence[Trial]
    samples: SampleSet
    candidates: int
    graph: CostGraph | None = None

    @property
    def high_ms(self) -> float | None:
        """The latency with every layer high, None where it was not measured."""
        everything = Plan.all_high(self.candidates)
        for trial in self.trials:
            latency = trial.outcome.evidence.latency
            if trial.proposal.plan == everything and latency is not None:
                return latency.median_ms
        return None

    def front(self, names: Sequence[str]) -> Sequence[FrontPoint]:
        """Return the front of the run, see `front`."""
        outcomes = judged_outcomes(self.trials, self.samples)
        return front(outcomes, self.high_ms, self.graph, names)

    def report(
        self, limits: SpeedLimits, latency: Latency | None, found_first: Sequence[str] | None
    ) -> SpeedReport | None:
        """Return how an answer of this latency meets the limits; None without limits."""
        if not limits.given:
            return None
        blank = SpeedReport(
            max_latency_ms=limits.max_latency_ms,
            min_speedup=limits.min_speedup,
            found_first=found_first,
        )
        high_ms = self.high_ms
        pace = None if high_ms is None else Pace.of(latency, high_ms)
        if high_ms is None or pace is None:
            return blank
        needed = limits.needed(high_ms)
        return replace(
            blank,
            latency_ms=pace.latency_ms(high_ms),
            speedup=pace.speedup,
            speedup_spread=pace.spread,
            met=pace.meets(needed),
            within_spread=pace.is_close_to(needed),
        )

    def best_so_far(self, limits: SpeedLimits) -> Plan | None:
        """Return the smallest plan that passed within the limits, else the fastest that passed."""
        high_ms = self.high_ms
        outcomes = judged_outcomes(self.trials, self.samples)
        passed = [plan for plan in sorted(outcomes) if outcomes[plan].passed]
        paces = {
            plan: pace
            for plan in passed
            if high_ms is not None and (pace := Pace.of(outcomes[plan].evidence.latency, high_ms))
        }
        if high_ms is None or not paces:
            return passed[0] if passed else None
        within = [plan for plan, pace in paces.items() if pace.meets(limits.needed(high_ms))]
        return within[0] if within else max(paces, key=lambda plan: paces[plan].speedup)


def _point(
    plan: Plan, outcome: Outcome, high_ms: float | None, graph: CostGraph | None
) -> FrontPoint | None:
    error = outcome.error
    # Not judged, or beyond every figure: no place on a chart of errors.
    if outcome.verdict is None or (error is not None and not math.isfinite(error)):
        return None
    point = FrontPoint(kept_count=len(plan), passed=outcome.passed, error=error)
    if high_ms is None:
        return None if graph is None else replace(point, cost=graph.cost(plan.kept))
    pace = Pace.of(outcome.evidence.latency, high_ms)
    if pace is None:
        return None
    return replace(
        point,
        latency_ms=pace.latency_ms(high_ms),
        spread_ms=pace.spread_ms(high_ms),
        speedup=pace.speedup,
    )
