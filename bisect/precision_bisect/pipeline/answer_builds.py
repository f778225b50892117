"""What the builds of an answer have shown: evidence, errors by output, latencies."""

from collections.abc import Mapping, Sequence

from precision_bisect.pipeline.chart import latency_of
from precision_bisect.plan import Plan
from precision_bisect.search.driver import Driver
from precision_bisect.trial import (
    JUDGED_KINDS,
    Evidence,
    Kind,
    Latency,
    OutputError,
    SampleSet,
    Trial,
)


def final_build(driver: Driver, plan: Plan | None, samples: SampleSet) -> Evidence:
    """Return what the last build of the answer showed: a fresh build, if there was one."""
    builds = [
        trial
        for trial in _builds(driver, plan)
        if trial.proposal.samples == samples or trial.proposal.kind is Kind.REBUILD
    ]
    return builds[-1].outcome.evidence if builds else Evidence()


def _builds(driver: Driver, plan: Plan | None) -> list[Trial]:
    """Return the trials that have built a plan and judged it, the freshest last."""
    trials = (each for each in driver.trials if each.proposal.kind in JUDGED_KINDS)
    builds = [each for each in trials if each.proposal.plan == plan]
    return sorted(builds, key=lambda trial: JUDGED_KINDS.index(trial.proposal.kind))


def output_errors(driver: Driver, plan: Plan | None, samples: SampleSet) -> Sequence[OutputError]:
    """Return those of the freshest build of the answer that has judged its samples, or all."""
    return next(
        (
            trial.outcome.evidence.output_errors
            for trial in reversed(_builds(driver, plan))
            if trial.proposal.samples == samples and trial.outcome.evidence.output_errors
        ),
        (),
    )


def latencies(driver: Driver, everything: Plan, final: Evidence) -> list[Latency | None]:
    """Return the latency of every layer high, of every layer low, and of the answer."""
    return [*(latency_of(driver, end) for end in (everything, Plan.of(()))), final.latency]


def medians(timed: Sequence[Latency | None]) -> Mapping[str, float | None] | None:
    """Return the medians in milliseconds, None for what was not measured; None for no figure."""
    if not any(timed):
        return None
    medians = [latency.median_ms if latency else None for latency in timed]
    return dict(zip(("all_high", "all_low", "kept"), medians, strict=True))
