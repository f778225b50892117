"""What `result.json` says of speed: the limits, how the answer meets them, the front."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Pace, SpeedLimits
from precision_bisect.runs.results.result import FrontPoint, SpeedReport
from precision_bisect.search.speed.front import FrontTrial, front, judged_outcomes
from precision_bisect.trial import Latency, SampleSet, Trial


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

    def front(self) -> Sequence[FrontTrial]:
        """Return the plans that none beats in error and speed, the fastest first."""
        return front(judged_outcomes(self.trials, self.samples), self.high_ms, self.graph)

    def report(
        self, limits: SpeedLimits, latency: Latency | None, found: Sequence[str] | None
    ) -> SpeedReport | None:
        """Return how an answer of this latency meets the limits; None without limits."""
        if not limits.given:
            return None
        blank = SpeedReport(
            max_latency_ms=limits.max_latency_ms, min_speedup=limits.min_speedup, found_first=found
        )
        high_ms = self.high_ms
        pace = None if high_ms is None else Pace.of(latency, high_ms)
        if high_ms is None or pace is None:
            return blank
        needed = limits.needed(high_ms)
        return SpeedReport(
            max_latency_ms=limits.max_latency_ms,
            min_speedup=limits.min_speedup,
            latency_ms=pace.latency_ms(high_ms),
            speedup=pace.speedup,
            speedup_spread=pace.spread,
            met=pace.meets(needed),
            within_spread=pace.is_close_to(needed),
            found_first=found,
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


def front_rows(points: Sequence[FrontTrial], names: Sequence[str]) -> list[FrontPoint]:
    """Return a front as `front` of `result.json` lists it; `names` are the candidates'."""
    return [
        FrontPoint(
            kept_count=len(point.plan),
            kept=[names[i] for i in point.plan.indices],
            passed=point.passed,
            error=point.error,
            latency_ms=point.latency_ms,
            spread_ms=point.spread_ms,
            speedup=point.speedup,
            cost=point.cost,
        )
        for point in points
    ]
