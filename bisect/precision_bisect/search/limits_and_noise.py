"""A search within a tighter limit than the tolerance, and outside what noise decides.

The comparator says whether a plan is within the tolerance. A search may ask for more, because two
builds of one plan differ, or because an emulator's errors are off by a factor.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.combinators import Batch, Outcomes, answered, mapped
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus, Verdict

CLEAR_SPREADS = 3.0
"""Standard deviations of ln(error over copies). A failure that exceeds the tolerance by more than
these is no chance event (normal distribution: 0.1%)."""
LEAST_CLEAR = 1.25
"""Factor above the tolerance. A failure by less is judged on copies, however small their spread. A
bound; copies of one plan spread by 0.05 to 0.6 in ln (PP-OCRv4, NAFNet)."""
FAR = 2.0
"""Factor below the largest error from which on a sample has no further copies, at least. A bound:
copies move an error by a tenth of that (see `LEAST_CLEAR`)."""
MARGIN = 2.0
"""Multiples of the noise floor (the difference of two builds of one plan) that a search stays
below the tolerance by. In the column "again" of benchmarks/results/search.md, family D has such
noise."""


def noise_between(high: Outcome | None, repeat: Outcome | None) -> float:
    """Return the noise floor: the difference of a repeat of all-high from it; 0 without a figure.

    A comparator of quality, not of difference, gives every repeat the same figure: no noise.
    """
    if high is None or repeat is None or repeat.error == high.error:
        return 0.0
    return repeat.error or 0.0


def below_noise(problem: Problem, least: float) -> Problem:
    """Return the problem with a tolerance that leaves room for the noise.

    A search takes every plan that passes by luck. An answer just within the tolerance would pass
    or fail by chance when it is built again. `least` is the error of all-high, which must pass: if
    the lower limit would not be above it, the tolerance stays.
    """
    if problem.tolerance is None or not problem.noise > 0:
        return problem
    lower = problem.tolerance - MARGIN * problem.noise
    return replace(problem, tolerance=lower) if lower > least else problem


def clearly_failed(outcome: Outcome, limit: float | None) -> bool:
    """Tell whether one evaluation failed by so much that copies would fail, too."""
    error = outcome.error
    return outcome.failed and limit is not None and error is not None and error >= limit


def deciding(
    errors: Sequence[float | None], copied: Sequence[float | None]
) -> Sequence[int] | None:
    """Return the places of the samples that may have the largest error on a further copy.

    `errors` are those of the samples, `copied` those of one copy of each. The others are so far
    below that `CLEAR_SPREADS` of the largest change between the two do not reach it. None, which
    means all, where an error is no figure above zero.
    """
    pairs = [(one, other) for one, other in zip(errors, copied, strict=False) if one and other]
    if not pairs or len(pairs) < len(errors) or math.inf in {*errors, *copied}:
        return None
    spread = max(abs(math.log(other / one)) for one, other in pairs)
    largest = [max(pair) for pair in pairs]
    least = max(largest) / max(FAR, math.exp(CLEAR_SPREADS * spread))
    return [place for place, error in enumerate(largest) if error > least]


def judged_within(outcome: Outcome, limit: float | None) -> Outcome:
    """Return the outcome with its verdict by `limit`; unchanged without a limit or a figure."""
    if limit is None or outcome.error is None or outcome.status is not TrialStatus.FINISHED:
        return outcome
    verdict = Verdict.PASS if outcome.error <= limit else Verdict.FAIL
    return outcome if verdict is outcome.verdict else replace(outcome, verdict=verdict)


def passing_within(outcome: Outcome, limit: float | None) -> Outcome:
    """Return the outcome, as a failure if it passed with an error above `limit`."""
    return judged_within(outcome, limit) if outcome.passed else outcome


def within(search: Search[T], limit: float | None) -> Search[T]:
    """Return the same search; it is told that plans with errors above `limit` fail."""

    return mapped(search, tell=lambda _, outcome: passing_within(outcome, limit))


def repeated(search: Search[T], problem: Problem) -> Search[T]:
    """Return the same search; a pass near the tolerance is told only if a second build agrees.

    A pass whose error is within `noise` of the tolerance says little. The plan is built once more,
    and passes only if both builds do; the larger error is told. A failure is believed at once: a
    false one costs layers, a false pass costs the answer. All-high is believed, too, since the
    preflight has built it twice.
    """
    everything = Plan.all_high(problem.size)

    def answer(batch: Batch) -> Search[Outcomes]:
        outcomes = yield batch
        # Draws have other samples of their own, and are repeated by who asks for them.
        unsure = [
            place
            for place, (proposal, outcome) in enumerate(zip(batch, outcomes, strict=True))
            if proposal.kind is Kind.JUDGE
            and proposal.plan != everything
            and not proposal.draw
            and _near(outcome, problem.tolerance, problem.noise)
        ]
        if unsure:
            again = yield tuple(_afresh(batch[place]) for place in unsure)
            outcomes = _both(outcomes, dict(zip(unsure, again, strict=True)))
        return outcomes

    return answered(search, answer)


def _near(outcome: Outcome, tolerance: float | None, noise: float) -> bool:
    """Tell whether noise may have decided a verdict."""
    if tolerance is None or outcome.error is None or not outcome.passed:
        return False
    return noise > 0 and tolerance - outcome.error <= noise


def _afresh(proposal: Proposal) -> Proposal:
    return replace(
        proposal,
        kind=Kind.AGAIN,
        # Where speed counts, it would be asked for, and no plan is built so for a third time.
        timed=True,
        reason=f"{proposal.reason}, once more: within the noise",
    )


def _both(outcomes: tuple[Outcome, ...], again: dict[int, Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes; where a plan has two, the worse one."""
    return tuple(
        max(
            again.get(place, outcome),
            outcome,
            key=lambda either: (not either.passed, either.error or 0.0),
        )
        for place, outcome in enumerate(outcomes)
    )
