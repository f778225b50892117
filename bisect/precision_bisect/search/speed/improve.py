"""Making a plan that passes faster, step by measured step.

As in Precimonious (C. Rubio-Gonzalez et al., "Precimonious: tuning assistant for floating-point
precision", SC 2013, section 3.3) a change is taken only if it is within the tolerance *and*
faster. A cost graph proposes moves, and the emulator sorts out those that would not pass. A series
of moves is built at its end first; only if the engine refuses that, less of it is tried.
"""

from collections.abc import Set

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.speed.forecast import ForecastLimit, calibrated
from precision_bisect.search.speed.measuring import Measured, measure_pace
from precision_bisect.search.speed.moves import Move, Substitutes, fillings, swap, swappable

MOST_BUILDS = 16
"""Builds of one improvement, at most. A bound. Half and double change nothing in
benchmarks/constants.py."""
PATIENCE = 5
"""Builds in a row without a gain that end the improvement. A bound. Half and double change nothing
in benchmarks/constants.py."""
SWAPPED = 8
"""Costliest kept layers and islands that substitutes are looked for. Half and double change
nothing in benchmarks/constants.py."""
FARTHEST = 12
"""Moves that are made by estimates before the engine is asked. A bound: estimates add up their
errors."""


def improve(
    problem: Problem, start: Measured, graph: CostGraph, high_ms: float
) -> Search[Measured]:
    """Return a faster plan that passes, or `start`, which must have passed.

    `high_ms` is the latency with every layer high. A step is taken only if it passed on the engine
    and is faster by more than both spreads.
    """
    best, tried, fruitless = start, {start.plan}, 0
    forecasts = yield from calibrated(problem.tolerance, best.plan, best.outcome)
    for _ in range(MOST_BUILDS):
        move = yield from _next(graph, best.plan, forecasts, tried)
        if move is None or fruitless >= PATIENCE:
            break
        tried.add(move.plan)
        measurement = yield from measure_pace(move.plan, high_ms, move.reason)
        fruitless += 1
        if not isinstance(measurement, Measured):
            continue
        if measurement.outcome.passed and measurement.pace.beats(best.pace):
            best, fruitless = measurement, 0
            forecasts = yield from calibrated(problem.tolerance, best.plan, best.outcome)
        # The emulator was too mild with this plan: hold it to what the engine has shown.
        elif measurement.outcome.failed:
            worse = yield from calibrated(problem.tolerance, measurement.plan, measurement.outcome)
            forecasts = forecasts.stricter(worse)
    return best


def _next(
    graph: CostGraph, plan: Plan, forecasts: ForecastLimit, tried: Set[Plan]
) -> Search[Move | None]:
    """Return the plan to try next, None if nothing is left.

    It is the end of the moves from `plan` on. Once that was tried, it is half as many moves, and
    so on down to the first. Then come the fillings one by one.
    """
    route = yield from _route(graph, plan, forecasts)
    count = len(route)
    while count:
        if route[count - 1].plan not in tried:
            return route[count - 1]
        count //= 2
    return next((move for move in fillings(graph, plan) if move.plan not in tried), None)


def _route(graph: CostGraph, plan: Plan, forecasts: ForecastLimit) -> Search[list[Move]]:
    """Return the moves that each lower the estimated cost of the plan before, at most `FARTHEST`.

    The gain and the reason of each are those of all moves up to it.
    """
    route: list[Move] = []
    now = plan
    without: set[tuple[int, ...]] = set()
    while len(route) < FARTHEST:
        move = yield from _best(graph, now, forecasts, without)
        if move is None:
            break
        now = move.plan
        several = f"{len(route) + 1} changes, {counted(len(now), 'layer')} kept"
        reason = several if route else move.reason
        route.append(Move(plan=now, gain_ms=graph.gain(plan.kept, now.kept), reason=reason))
    return route


def _best(
    graph: CostGraph, plan: Plan, forecasts: ForecastLimit, without: set[tuple[int, ...]]
) -> Search[Move | None]:
    """Return one move from a plan: all fillings at once, else the first swap that there is.

    Parts in `without` had no substitute so far and are not asked about; new ones are added to it.
    """
    fills = fillings(graph, plan)
    if fills:
        return fills[0]
    others = Substitutes()
    for part in swappable(graph, plan)[:SWAPPED]:
        if part in without:
            continue
        move = yield from swap(graph, plan, part, forecasts, others)
        if move is not None:
            return move
        without.add(part)
    return None
