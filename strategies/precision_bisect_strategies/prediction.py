"""Searching on the emulator where trials are builds of an engine."""

import math
from dataclasses import replace

from precision_bisect.protocols import Search, T
from precision_bisect.trial import Kind, Outcome, Phase, TrialStatus, Verdict

SAFETY = 0.9
"""Share of a corrected limit that is used, since the correction is one sample of the ratio."""


def predicted(search: Search[T], limit: float | None) -> Search[T]:
    """Return the same search, asked of the emulator, with errors judged against `limit`.

    Without a limit, or where the check has no figure, the emulator's own verdicts stand.
    """
    try:
        batch = next(search)
        while True:
            outcomes = yield tuple(
                replace(proposal, kind=Kind.PREDICT, phase=Phase.PREDICTION) for proposal in batch
            )
            batch = search.send(tuple(_judged(outcome, limit) for outcome in outcomes))
    except StopIteration as end:
        result: T = end.value
        return result


def corrected(
    tolerance: float | None, forecast: float | None, actual: float | None
) -> float | None:
    """Return the limit for the emulator at which the engine's error meets the tolerance.

    `actual` is the engine's error for a plan whose emulated error is `forecast`. None where the
    figures allow no correction: the check has none, or one of them is zero or infinite.
    """
    if tolerance is None or not forecast or not actual:
        return None
    if not math.isfinite(forecast) or not math.isfinite(actual):
        return None
    return tolerance * forecast / actual


def _judged(outcome: Outcome, limit: float | None) -> Outcome:
    if limit is None or outcome.error is None or outcome.status is not TrialStatus.FINISHED:
        return outcome
    return replace(outcome, verdict=Verdict.PASS if outcome.error <= limit else Verdict.FAIL)
