"""Fitting the emulator's choice to the engine, where errors do not add up.

How far an outcome is from the emulator's forecast tells how far the emulator is off, and it
chooses again within a limit that is corrected by as much. Nothing is taken on its word: a plan
counts once it passed.
"""

import math
from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.choosing import narrowed
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted

TRIES = 5
"""So many choices of the emulator are tried."""
LESS = 0.8
"""No more where keeping more layers left the error above this share: no factor corrects that."""


def tuned(problem: Problem, order: Sequence[int], plan: Plan) -> Search[Plan]:
    """Return the smallest choice that passed, from `plan` on; the last one where none did.

    `order` has the layers, most sensitive first. What the emulator keeps may still be too much:
    as long as half as many of the most sensitive layers pass, these are the answer.
    """
    best: Plan | None = None
    limit: float | None = None
    worst = math.inf
    for _ in range(TRIES):
        outcome = yield from ask(plan, f"the {len(plan)} that the emulator chooses")
        forecast = yield from predicted(ask(plan, "the error expected"), None)
        exact = corrected(problem.tolerance, forecast.error, outcome.error)
        if outcome.passed and (best is None or plan < best):
            best = plan
        if exact is None or outcome.error is None:
            break
        if not outcome.passed:
            if outcome.error > LESS * worst:
                break
            worst = outcome.error
        limit = exact if outcome.passed else SAFETY * min(exact, limit or exact)
        smaller = yield from narrowed(order, plan, limit)
        if smaller == plan or (best is not None and len(smaller) >= len(best)):
            break
        plan = smaller
    if best is None:
        return plan
    return (yield from _halved(order, best))


def _halved(order: Sequence[int], best: Plan) -> Search[Plan]:
    """Return the shortest of the prefixes of half, a quarter, ... as many layers that pass."""
    while len(best) > 1:
        half = Plan.of(order[: len(best) // 2])
        outcome = yield from ask(half, f"the {len(half)} most sensitive")
        if not outcome.passed:
            break
        best = half
    return best
