"""The state that a demotion starts from: everything high, and a ranking to believe in or not."""

import math
from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem
from precision_bisect.trial import Outcome
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import NOISY, Demotion
from precision_bisect_strategies.probes import Line
from precision_bisect_strategies.units import Rated

LEAST_PATIENCE = 12
"""A ranking that proves poor is given up after as many builds as the root of the number of units:
few for thousands, and that many at least."""
CHECKED_PATIENCE = 2
"""One that was checked is given so many times as many."""


def started(
    problem: Problem,
    ranked: Sequence[Rated],
    dropped: int,
    room: float | None,
    high: Outcome,
    low: Outcome,
    chosen: Plan,
) -> Demotion:
    """Return the state in which nothing is decided on, the first `dropped` likely to go.

    `room` is the error that may be added, None where errors do not add up; `high` and `low` are
    the outcomes of both ends, `chosen` is what the emulator would keep.
    """
    line = list(range(len(ranked)))
    beliefs = believed(problem, ranked, dropped, room)
    if (everything := added(low, high)) is not None:
        beliefs.learn_sum(line, everything)
    return Demotion(
        order=[each.unit for each in ranked],
        beliefs=beliefs,
        limit=problem.tolerance,
        plan=Plan.all_high(problem.size),
        error=high.error,
        low_error=low.error,
        suspects=[Line(line, bad=True, error=low.error)],
        workers=problem.workers,
        noise=problem.noise,
        chosen=chosen,
    )


def added(low: Outcome, high: Outcome) -> float | None:
    """Return what all layers add, None without figures."""
    if low.error is None or high.error is None:
        return None
    return low.error - high.error


def believed(
    problem: Problem, ranked: Sequence[Rated], dropped: int, room: float | None
) -> Beliefs:
    """Return what is believed before any build; arguments as in `started`."""
    return Beliefs(
        [each.rate for each in ranked],
        [each.cost for each in ranked],
        room=room,
        expected=len(ranked) - dropped,
        seed=problem.seed,
        exact=not noisy(problem) and len({*problem.costs}) < 2,
    )


def patience(problem: Problem, state: Demotion, *, checked: bool) -> int | None:
    """Return after how many builds a ranking that proves poor is given up; None for never.

    Only where noise hides what layers add: elsewhere each build tells it. `checked` says that what
    single layers add did not show it to be poor.
    """
    if not noisy(problem) or not state.beliefs.figures:
        return None
    builds = max(LEAST_PATIENCE, round(math.sqrt(len(state.order))))
    return CHECKED_PATIENCE * builds if checked else builds


def noisy(problem: Problem) -> bool:
    """Whether noise hides what single layers add near the tolerance."""
    return problem.tolerance is not None and 0 < problem.noise >= NOISY * problem.tolerance
