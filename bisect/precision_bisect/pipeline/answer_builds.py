"""What the builds of an answer have shown: evidence, errors by output, latencies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precision_bisect.judging.comparators.output_errors import together
from precision_bisect.pipeline.chart import latency_of, paced
from precision_bisect.plan import Plan
from precision_bisect.search.driver import Driver
from precision_bisect.trial import (
    JUDGED_KINDS,
    Evidence,
    Kind,
    Latency,
    LatencyMethod,
    OutputError,
    SampleSet,
    Trial,
    TrialStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The medians in milliseconds, None for what was not measured, and for no figure at all.

    `spread_ms` is that of the answer's, `own` its latency as it was measured.
    """

    medians: Mapping[str, float | None] | None = None
    spread_ms: float | None = None
    method: LatencyMethod | None = None
    own: Latency | None = None


def final_build(driver: Driver, plan: Plan | None, samples: SampleSet) -> Evidence:
    """Return what the last build of the answer showed: a fresh build, if there was one."""
    builds = [
        trial
        for trial in _builds(driver, plan)
        if trial.proposal.samples == samples or trial.proposal.kind is Kind.REBUILD
        # What judges one by one looks at nothing else.
        if not trial.proposal.samples.singly
    ]
    return builds[-1].outcome.evidence if builds else Evidence()


def _builds(driver: Driver, plan: Plan | None) -> list[Trial]:
    """Return the trials that have built a plan and judged it, the freshest last."""
    trials = (each for each in driver.trials if each.proposal.kind in JUDGED_KINDS)
    builds = [each for each in trials if each.proposal.plan == plan]
    return sorted(builds, key=lambda trial: JUDGED_KINDS.index(trial.proposal.kind))


def errors_by_output(
    driver: Driver, plan: Plan | None, samples: SampleSet
) -> Sequence[OutputError]:
    """Return those of the freshest builds of the answer on its samples, and on all others.

    Outputs that are empty in every sample are left out.
    """
    found = {
        trial.proposal.samples: trial.outcome.evidence.output_errors
        for trial in _builds(driver, plan)
        if trial.proposal.samples in (samples, samples.others)
        and trial.outcome.evidence.output_errors
    }
    errors = together(found.values()) if samples in found else ()
    return [each for each in errors if each.elements]


def latencies(driver: Driver, everything: Plan, answer: Plan | None) -> Timed:
    """Return how long every layer high, every layer low, and the answer take."""
    plans = {"all_high": everything, "all_low": Plan.of(()), "kept": answer}
    told = {
        name: None if plan is None else latency_of(driver, plan) for name, plan in plans.items()
    }
    high = told["all_high"]
    if not any(told.values()):
        return Timed()
    paces = {name: paced(high, each) for name, each in told.items()}
    own = paces["kept"]
    return Timed(
        medians={name: each and round(each[0], 6) for name, each in paces.items()},
        spread_ms=own and round(own[1], 6),
        method=next(each.method for each in told.values() if each),
        own=told["kept"],
    )


def forecast_notes(driver: Driver) -> list[str]:
    """Return the notes of forecasts: where they moved, and why."""
    forecasts = (t.outcome for t in driver.trials if t.proposal.kind is Kind.PREDICT)
    return [*dict.fromkeys(note for each in forecasts for note in each.evidence.notes)]


def without_verdict(trials: Sequence[Trial]) -> Mapping[str, int]:
    """Return how many trials had no verdict, by their status, in the order of the statuses."""
    counts = Counter(trial.outcome.status for trial in trials if trial.outcome.verdict is None)
    return {status.value: counts[status] for status in TrialStatus if counts[status]}
