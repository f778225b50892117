"""Searching on the emulator where trials are builds of an engine."""

import math
from dataclasses import replace

from precision_bisect.protocols import Search, T
from precision_bisect.relay import relay
from precision_bisect.trial import Kind, Phase, Proposal, SampleSet
from precision_bisect.verdicts import judged_within

SAFETY = 0.9
"""Share of the limit that the emulator's plan may use where an engine judges it."""


def predicted(
    search: Search[T], limit: float | None, samples: SampleSet = SampleSet.JUDGED
) -> Search[T]:
    """Return the same search, asked of the emulator, with errors judged against `limit`.

    Without a limit, or where the check has no figure, the emulator's own verdicts stand.
    """

    def ask(proposal: Proposal) -> Proposal:
        return replace(proposal, kind=Kind.PREDICT, phase=Phase.PREDICTION, samples=samples)

    return relay(search, ask=ask, tell=lambda _, outcome: judged_within(outcome, limit))


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
