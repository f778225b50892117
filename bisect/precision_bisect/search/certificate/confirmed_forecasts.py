"""Where a forecast stands for building the plan without one layer.

A forecast far beyond the tolerance stands if builds have confirmed such forecasts: on the plans
that the run has built, and on a random sample of those that are to stand. One that a build
contradicts ends it; every drop is built then.

The sample alone carries the promise. Of N forecasts that are to stand, n are drawn without
replacement and built. If D of the N were wrong, none of the n would be with the chance
C(N - D, n) / C(N, n). A D for which that is 10% or less is ruled out with 90% confidence, however
errors are distributed.
"""

import math
import random
from functools import lru_cache
from typing import NamedTuple

from precision_bisect.plan import Plan
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.trial import Outcome

RISK = 0.1
WRONG = 0.25
"""Share of the forecasts that stand which may be wrong, at most, but for a `RISK`: five builds for
a dozen forecasts, nine for any number. Half and double change nothing in
benchmarks/constants.py."""
SPREADS = 2.0
LEAST_FAR = 1.5
"""A forecast is far from the tolerance if the factor between them is `LEAST_FAR` or more, and
`SPREADS` times the observed spread. The emulator's error was at most 1.38 times the engine's over
735 plans of four networks (an H200, benchmarks/results/engine)."""
FLOOR = 0.1
"""Share of the tolerance that smaller errors count as: they may be the engine's own. Half and
double change nothing in benchmarks/constants.py."""
# ln of a factor that only infinite errors reach.
_MOST = 100.0


class Confirmed(NamedTuple):
    """What builds say of a run's forecasts.

    `far` is the multiple of the tolerance, or the part of it, from which a forecast is far. Of
    `builds` plans with such a forecast `right` were built to the same verdict. `passed` plans were
    built and forecast to pass, `failed` to fail by far.
    """

    tolerance: float
    far: float
    right: int
    builds: int
    passed: int
    failed: int

    def stands(self, forecast: Outcome | None) -> bool:
        """Tell whether a forecast is to be believed that a plan fails."""
        if forecast is None or forecast.error is None:
            return False
        trusted = self.passed and self.failed and self.right == self.builds
        return bool(trusted) and forecast.error >= self.far * self.tolerance


def confirmed(trials: JudgedTrials) -> Confirmed:
    """Compare all plans that were built and forecast; all high has nothing to forecast.

    The spread is the root of the mean square of ln(built error / forecast error).
    """
    limit = trials.tolerance or 0.0
    steps: list[float] = []
    expectations: list[tuple[float, set[bool]]] = []
    for plan, forecast in trials.forecasts.items() if limit > 0 else ():
        builds = [outcome for outcome in trials.outcomes(plan) if outcome.verdict is not None]
        if not builds or forecast.error is None or len(plan) == trials.size:
            continue
        expected = _off(forecast.error, limit)
        expectations.append((expected, {outcome.passed for outcome in builds}))
        if builds[0].error is not None:
            actual = _off(builds[0].error, limit)
            # Errors far below the limit are noise, and their ratio says nothing near it.
            if max(expected, actual) > math.log(FLOOR) and math.isfinite(actual - expected):
                steps.append(actual - expected)
    spread = math.sqrt(sum(step**2 for step in steps) / len(steps)) if steps else 0.0
    far = min(max(math.log(LEAST_FAR), SPREADS * spread), _MOST)
    tests = [passed == {expected < 0} for expected, passed in expectations if abs(expected) >= far]
    return Confirmed(
        tolerance=limit,
        far=math.exp(far),
        right=sum(tests),
        builds=len(tests),
        passed=sum(expected <= 0 and passed == {True} for expected, passed in expectations),
        failed=sum(expected >= far and passed == {False} for expected, passed in expectations),
    )


def standing(trials: JudgedTrials, plan: Plan, seed: int) -> list[int]:
    """Return the layers for whose drop a forecast may stand, in the order to draw them in.

    A layer is left out whose drop was built, but proves nothing.
    """
    confirmation = confirmed(trials)
    drops = {layer: plan.without((layer,)) for layer in plan.indices}
    layers = [
        layer
        for layer, drop in drops.items()
        if confirmation.stands(trials.forecasts.get(drop))
        and (trials.proof(drop) is not None or not trials.outcomes(drop))
    ]
    # From the plan and the seed alone: a run that is resumed draws the same.
    order = list(plan.indices)
    random.Random(f"{seed}:{plan.key}").shuffle(order)
    return sorted(layers, key=order.index)


@lru_cache(maxsize=64)
def sample_of(forecasts: int) -> int:
    """Return how many of so many forecasts must be built for the others to stand."""
    return next(n for n in range(forecasts + 1) if wrong_of(forecasts, n) <= WRONG * forecasts)


def wrong_of(forecasts: int, right: int) -> int:
    """Return how many of so many forecasts may be wrong, if a sample of them was `right`."""
    chances = math.comb(forecasts, right) * RISK
    wrong = 0
    while wrong < forecasts - right and math.comb(forecasts - wrong - 1, right) > chances:
        wrong += 1
    return wrong


def _off(error: float, limit: float) -> float:
    """Return ln of how many times the limit an error is."""
    return math.log(max(error / limit, FLOOR))
