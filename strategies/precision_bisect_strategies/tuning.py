"""Fitting the emulator's choice to the engine, where errors do not add up.

How far an outcome is from the emulator's forecast tells how far the emulator is off, and it
chooses again within a limit that is corrected by as much. Nothing is taken on its word: a plan
counts once it passed.
"""

from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.choosing import narrowed
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted

TRIES = 5
"""So many choices of the emulator are tried."""


def tuned(problem: Problem, order: Sequence[int], plan: Plan) -> Search[Plan]:
    """Return the smallest choice that passed, from `plan` on; the last one where none did.

    `order` has the layers, most sensitive first.
    """
    best: Plan | None = None
    limit: float | None = None
    for _ in range(TRIES):
        outcome = yield from ask(plan, f"the {len(plan)} that the emulator chooses")
        forecast = yield from predicted(ask(plan, "the error expected"), None)
        exact = corrected(problem.tolerance, forecast.error, outcome.error)
        if outcome.passed and (best is None or plan < best):
            best = plan
        if exact is None:
            break
        limit = exact if outcome.passed else SAFETY * min(exact, limit or exact)
        smaller = yield from narrowed(order, plan, limit)
        if smaller == plan or (best is not None and len(smaller) >= len(best)):
            break
        plan = smaller
    return best or plan
