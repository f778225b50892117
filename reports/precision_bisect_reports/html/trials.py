"""The trials of a search in columns, and what they say of single layers."""

import math
from collections.abc import Sequence
from typing import Any

from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.ledger_reader import Recorded
from precision_bisect.search.sample_sets import searched
from precision_bisect.search.speed.front import judged_outcomes
from precision_bisect.trial import Kind, Phase, Trial


def coded(texts: Sequence[str]) -> dict[str, Any]:
    """Return the different texts, and for each place the number of its text."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return {"texts": list(numbers), "at": [numbers[text] for text in texts]}


def figure(value: float | None) -> float | str | None:
    """Return a figure with six digits, "inf" for an infinite one, None for none."""
    if value is None or math.isnan(value):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else "inf"


_MOST_TOGETHER = 64
"""Errors of larger blocks say too little of one layer in them."""


def columns(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return one list per field, in the order in which the trials began; texts by number."""
    latencies = [trial.outcome.evidence.latency for trial in trials]
    return {
        "phase": coded([trial.proposal.phase.value for trial in trials]),
        "verdict": coded([(t.outcome.verdict or t.outcome.status).value for t in trials]),
        "kind": coded([trial.proposal.kind.value for trial in trials]),
        "samples": coded([str(trial.proposal.samples) for trial in trials]),
        "reason": coded([trial.proposal.reason for trial in trials]),
        "kept": [len(trial.proposal.plan) for trial in trials],
        "error": [figure(trial.outcome.error) for trial in trials],
        "seconds": [figure(trial.outcome.wall_s) for trial in trials],
        "latency": [each and figure(each.median_ms) for each in latencies],
        "spread": [each and figure(each.spread_ms) for each in latencies],
    }


def candidates_of(recorded: Recorded) -> int:
    """Return how many layers a search decides on, 0 where its preflight has not begun."""
    return max((len(trial.proposal.plan) for trial in recorded.trials), default=0)


def best(recorded: Recorded) -> tuple[Plan, float | None] | None:
    """Return the smallest plan that has passed so far, with its error.

    The plan that keeps every layer is none: it is what there was before the search.
    """
    outcomes = judged_outcomes(recorded.trials, searched(recorded.trials))
    every = candidates_of(recorded)
    passed = sorted(p for p, outcome in outcomes.items() if outcome.passed and len(p) < every)
    return (passed[0], outcomes[passed[0]].error) if passed else None


def sensitivities(recorded: Recorded) -> dict[int, tuple[float, int]]:
    """Return by candidate the error of running it low, and how many layers ran low with it.

    All other layers were high. Of several trials the one with the fewest layers low counts.
    """
    every = Plan.all_high(candidates_of(recorded))
    found: dict[int, tuple[float, int]] = {}
    for trial in recorded.trials:
        error = trial.outcome.error
        if not _ranks(trial) or error is None:
            continue
        low = Plan(every.mask & ~trial.proposal.plan.mask)
        if not 0 < len(low) <= _MOST_TOGETHER:
            continue
        for index in low.indices:
            if index not in found or len(low) < found[index][1]:
                found[index] = (error, len(low))
    return found


def _ranks(trial: Trial) -> bool:
    asked = trial.proposal
    return asked.phase in (Phase.RANKING, Phase.PREDICTION) and asked.kind is Kind.PREDICT
