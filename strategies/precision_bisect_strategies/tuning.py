"""Where errors do not add up: the emulator forecasts every step, and the engine corrects it.

How far an outcome is from the forecast tells how far the emulator is off, and it chooses again
within a limit that is corrected by as much. When it has no smaller plan to offer, single layers
are dropped, the one whose drop is forecast to cost least first. Nothing is taken on the emulator's
word: a plan counts once it passed.
"""

from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Phase, Proposal
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.bisection import shortest_prefix
from precision_bisect_strategies.choosing import narrowed
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted
from precision_bisect_strategies.shrinking import shrink

FAILURES = 4
"""After so many choices that failed the emulator is asked for no other."""


def tuned(problem: Problem, order: Sequence[int], plan: Plan) -> Search[Plan]:
    """Return a plan that passed, from the emulator's choice `plan` on.

    `order` has the layers, most sensitive first.
    """
    plan = yield from _descended(problem, order, plan)
    return (yield from _dropped(problem, plan))


def _descended(problem: Problem, order: Sequence[int], plan: Plan) -> Search[Plan]:
    """Return the smallest choice that passed; without any, one that grew along the ranking."""
    best: Plan | None = None
    known = limit = 0.0
    failures = 0
    while failures < FAILURES:
        outcome = yield from ask(plan, f"the {len(plan)} that the emulator chooses")
        forecast = yield from predicted(ask(plan, "the error expected"), None)
        exact = corrected(problem.tolerance, forecast.error, outcome.error)
        if outcome.passed:
            best, known = plan, forecast.error or 0.0
        if exact is None:
            break
        if outcome.passed:
            limit = exact
        elif best is None:
            limit = SAFETY * min(exact, limit or exact)
        else:
            limit = (limit + known) / 2
        failures += not outcome.passed
        if best is None:
            smaller = yield from narrowed(order, plan, limit)
        else:
            kept = [layer for layer in order if layer in best.kept]
            smaller = yield from predicted(shrink(kept), limit)
        if smaller in (plan, best):
            break
        plan = smaller
    if best is not None:
        return best
    others = [layer for layer in order if layer not in plan.kept]
    length = yield from shortest_prefix(others, "add the most sensitive", 1, plan.indices)
    return plan.with_(others[:length])


def _dropped(problem: Problem, plan: Plan) -> Search[Plan]:
    """Drop single layers, the cheapest by forecast first, until each was tried or is gone."""
    tried: set[int] = set()
    while waiting := [layer for layer in plan.indices if layer not in tried]:
        forecasts = yield tuple(
            Proposal(plan=plan.without((i,)), kind=Kind.PREDICT, phase=Phase.PREDICTION)
            for i in waiting
        )
        costs = {i: f.error for i, f in zip(waiting, forecasts, strict=True)}
        waiting.sort(key=lambda i: (float("inf") if costs[i] is None else costs[i], i))
        passed: list[tuple[float, int]] = []
        while waiting and not passed:
            batch, waiting = waiting[: problem.workers], waiting[problem.workers :]
            outcomes = yield tuple(
                Proposal(
                    plan=plan.without((i,)),
                    reason=f"drop the cheapest of {len(plan)}",
                    narrowed_to=len(plan),
                    about_left=len(waiting) + 1,
                )
                for i in batch
            )
            for layer, outcome in zip(batch, outcomes, strict=True):
                if outcome.passed:
                    passed.append((outcome.error or 0.0, layer))
                else:
                    tried.add(layer)
        if passed:
            plan = plan.without((min(passed)[1],))
    return plan
