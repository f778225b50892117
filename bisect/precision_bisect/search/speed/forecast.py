"""Asking the emulator whether plans are worth a build."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Kind, Outcome, Phase, Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLimit:
    """The limit that the emulator's errors must stay within for the engine to pass.

    None where errors are no figures: the emulator's own verdict counts then.
    """

    limit: float | None

    def passes(self, outcome: Outcome) -> bool:
        """Tell whether a forecast promises a pass."""
        if self.limit is None or outcome.error is None:
            return outcome.passed
        return outcome.error <= self.limit

    def stricter(self, other: "ForecastLimit") -> "ForecastLimit":
        """Return the stricter of two limits of one problem: both are figures, or neither is."""
        return min(self, other, key=lambda one: one.limit or 0.0)


def calibrated(tolerance: float | None, plan: Plan, judged: Outcome) -> Search[ForecastLimit]:
    """Return forecasts whose limit is corrected by the emulator's error on `plan`.

    `judged` is the engine's outcome for it. The limit is tolerance x forecast / engine's error.
    Without finite figures of both it is the tolerance itself.
    """
    (forecast,) = yield from emulated_outcomes([plan], "what the emulator says of the plan")
    if tolerance is None:
        return ForecastLimit(limit=None)
    actual, predicted = judged.error, forecast.error
    # An error of 0 gives no ratio either.
    if not actual or not predicted or not math.isfinite(actual) or not math.isfinite(predicted):
        return ForecastLimit(limit=tolerance)
    return ForecastLimit(limit=tolerance * predicted / actual)


def emulated_outcomes(plans: Sequence[Plan], reason: str) -> Search[tuple[Outcome, ...]]:
    """Return the emulator's outcomes for plans, in order."""
    if not plans:
        return ()
    return (
        yield tuple(
            Proposal(plan=plan, phase=Phase.SPEED, kind=Kind.PREDICT, reason=reason)
            for plan in plans
        )
    )
