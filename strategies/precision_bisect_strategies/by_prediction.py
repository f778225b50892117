"""Guided search where trials are builds: the emulator goes first, the engine confirms.

The emulator finds a minimal set within the tolerance and the engine tries it. How far its error is
from the forecast tells how far the emulator is off, and the emulator looks again within a limit
that is corrected by as much. Nothing is taken on the emulator's word: a plan counts once it passed
on the engine.
"""

from precision_bisect.flow import certify
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.bisection import shortest_prefix
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted
from precision_bisect_strategies.shrinking import shrink

PREDICTIONS = 4
"""So many sets that the emulator predicts are tried on the engine before the ranking is."""
FAILURES = 3
"""After so many failures the engine is asked for no smaller set at a time."""
FORECASTS = 64
"""Up to so many kept layers, every single drop is forecast before one is tried."""


def by_prediction(problem: Problem, order: list[int], guess: int) -> Search[Plan]:
    """Return a plan that passes on the engine; `order` has the most sensitive layers first."""
    plan = yield from confirm(problem, order, guess)
    plan = yield from descend(problem, order, plan)
    plan = yield from drop_singly(plan)
    return (yield from shrink(_in_order(plan, order)))


def confirm(problem: Problem, order: list[int], guess: int) -> Search[Plan]:
    """Return a first plan that passes on the engine.

    A predicted set that fails tightens the emulator's limit. What still fails grows along the
    ranking.
    """
    limit, plan = problem.tolerance, Plan.of(())
    for _ in range(PREDICTIONS):
        found = yield from predicted(_minimal(order, guess), limit)
        if found == plan:
            break
        plan = found
        outcome = yield from ask(plan, f"the {len(plan)} predicted")
        if outcome.passed:
            return plan
        forecast = yield from predicted(ask(plan, "the error expected"), limit)
        exact = corrected(problem.tolerance, forecast.error, outcome.error)
        if exact is None or limit is None:
            break
        limit = SAFETY * min(exact, limit)
    others = [layer for layer in order if layer not in plan.kept]
    length = yield from shortest_prefix(others, "add the most sensitive", 1, plan.indices)
    return Plan.of((*plan.indices, *others[:length]))


def descend(problem: Problem, order: list[int], plan: Plan) -> Search[Plan]:
    """Return a smaller plan where the engine leaves room below the tolerance.

    The emulator drops what it can within the limit that the last pass corrects, and the engine
    tries that. Where it fails, the limit goes half the way back to what passed.
    """
    outcome = yield from ask(plan, "what passed")
    forecast = yield from predicted(ask(plan, "the error expected"), None)
    limit = corrected(problem.tolerance, forecast.error, outcome.error)
    failures = 0
    while limit is not None and failures < FAILURES:
        smaller = yield from predicted(shrink(_in_order(plan, order)), limit)
        if smaller == plan:
            break
        outcome = yield from ask(
            smaller, f"{len(smaller)} of the {len(plan)}", narrowed_to=len(plan)
        )
        if outcome.passed:
            plan = smaller
            forecast = yield from predicted(ask(plan, "the error expected"), None)
            limit = corrected(problem.tolerance, forecast.error, outcome.error)
        else:
            failures += 1
            limit = (limit + (forecast.error or 0.0)) / 2
    return plan


def drop_singly(plan: Plan) -> Search[Plan]:
    """Drop the layer whose drop is forecast to cost least, as long as the engine follows.

    A later pass would make the certificate begin again, so the likeliest ones go first.
    """
    while plan.kept and len(plan) <= FORECASTS:
        costs = []
        for layer in plan.indices:
            forecast = yield from predicted(ask(plan.without((layer,)), "a single drop"), None)
            if forecast.error is None:
                return plan
            costs.append((forecast.error, layer))
        _, layer = min(costs)
        outcome = yield from ask(
            plan.without((layer,)), "the least costly drop", narrowed_to=len(plan)
        )
        if not outcome.passed:
            return plan
        plan = plan.without((layer,))
    return plan


def _in_order(plan: Plan, order: list[int]) -> list[int]:
    return [layer for layer in order if layer in plan.kept]


def _minimal(order: list[int], guess: int) -> Search[Plan]:
    length = yield from shortest_prefix(order, "keep the most sensitive", guess)
    plan = yield from shrink(order[:length])
    return (yield from certify(plan))
