"""What comes before any search: both ends, the noise, and the plans that need no ranking."""

from dataclasses import replace

from precision_bisect.plan import Plan
from precision_bisect.protocols import BEYOND_RANGE, Problem, Search
from precision_bisect.runs.results.endings import (
    Ending,
    Status,
    no_baseline,
    noisy,
    not_precision,
)
from precision_bisect.search.limits_and_noise import passing_within
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

FEW = 32
"""Layers that a plan may keep for its drops to be built before anything is ranked. A bound."""


def preflight(problem: Problem) -> Search[Ending | None]:
    """Check both ends and the noise before any search; return an ending where that decides it.

    All-low must be within the problem's own tolerance, which may be tighter than the comparator's.
    The plan to start from and that of all layers beyond the low type's range need no ranking: if
    one passes, the run has an answer from here on.
    """
    everything = Plan.all_high(problem.size)
    timed = problem.timed or (problem.builds and problem.as_deployed)
    high = yield from one(everything, Phase.PREFLIGHT, "every layer high", timed=timed)
    # Nothing was judged: the machine or the model fails, and the repeat would fail alike.
    if high.verdict is None:
        return Ending(status=Status.NO_BASELINE, message=no_baseline(high))
    noise = yield from one(
        everything,
        Phase.PREFLIGHT,
        "the same again, to see the noise",
        kind=Kind.REPEAT,
        # This build is as deployed, so it tells how fast every layer high is there.
        timed=problem.builds and not timed,
    )
    # A comparator of quality, not of difference, gives every repeat the same figure.
    if not noise.passed and (high.passed or noise.error != high.error):
        return Ending(status=Status.INFEASIBLE, message=noisy(noise))
    if not high.passed:
        return Ending(status=Status.NOT_PRECISION, message=not_precision(high))
    low = yield from one(Plan.of(()), Phase.PREFLIGHT, "every layer low", timed=timed)
    if passing_within(low, problem.tolerance).passed:
        return Ending(
            status=Status.NOTHING_TO_KEEP,
            plan=Plan.of(()),
            message="every layer can run low within the tolerance",
        )
    for plan, reason in problem.first_plans:
        yield from one(plan, Phase.PREFLIGHT, reason, timed=timed)
    return None


def settled(problem: Problem) -> Search[Problem]:
    """Take what leaves the range of a large model for the answer, if it is little and passes.

    Building it without each layer takes less time and memory than a ranking of all.
    """
    plan = problem.beyond_range() if problem.builds and problem.speed is None else None
    if plan is None or len(plan) > FEW:
        return problem
    told = yield from one(plan, Phase.PREFLIGHT, BEYOND_RANGE)
    return replace(problem, passing=plan, settled=True) if told.passed else problem


def one(
    plan: Plan,
    phase: Phase,
    reason: str,
    *,
    kind: Kind = Kind.JUDGE,
    timed: bool = False,
    samples: SampleSet = SampleSet.JUDGED,
    draw: int = 0,
) -> Search[Outcome]:
    """Return what a plan comes to by itself."""
    asked = Proposal(
        plan=plan, phase=phase, kind=kind, timed=timed, samples=samples, draw=draw, reason=reason
    )
    (outcome,) = yield (asked,)
    return outcome
