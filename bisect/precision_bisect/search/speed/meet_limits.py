"""Bringing an answer within the speed limits, or showing how near both limits can be met.

A plan that passes is made faster step by measured step. As in Precimonious (C. Rubio-Gonzalez et
al., "Precimonious: tuning assistant for floating-point precision", SC 2013, section 3.3) a change
is taken only if it is within the tolerance *and* faster. A cost graph proposes moves, and the
emulator sorts out those that would not pass. A series of moves is built at its end first; only if
the engine refuses that, less of it is tried.
"""

from collections.abc import Sequence, Set

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Pace, SpeedLimits
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.runs.results.speed_report import FrontPoint
from precision_bisect.search.sensitivity import rank
from precision_bisect.search.speed.contenders import contenders, law_factor
from precision_bisect.search.speed.forecast import ForecastLimit, calibrated, emulated_outcomes
from precision_bisect.search.speed.front import front
from precision_bisect.search.speed.measuring import (
    Measured,
    Record,
    all_high_ms,
    measure_pace,
    timed,
)
from precision_bisect.search.speed.moves import Move, Substitutes, fillings, swap, swappable
from precision_bisect.trial import Kind, Outcome, Phase, Proposal

MOST_OF_LITTLE_COST = 5
"""Plans of little cost that are built where steps do not reach the limits. A bound on builds."""
MOST_AFRESH = 3
"""Plans that hold both limits in one build and are built afresh, at most. A bound on builds."""
# Kept layers above which single drops are not forecast: what costs most goes first then. A bound
# on forecasts.
_FORECAST_UP_TO = 256


def given(plan: Plan) -> Search[Plan]:
    """Return a search that has nothing to search for."""
    yield from ()
    return plan


def fast_enough(problem: Problem, search: Search[Plan]) -> Search[Ending]:
    """Run a search, and return how it ends; speed limits are timed, and seen to be met."""
    if problem.speed is None:
        return Ending(status=Status.FOUND, plan=(yield from search))
    record = Record()
    # Timed trials run alone, so with several workers only what needs a latency is timed.
    course = _course(problem, search, problem.speed, record)
    return (yield from timed(course, record, whole=problem.workers == 1))


def _course(
    problem: Problem, search: Search[Plan], limits: SpeedLimits, record: Record
) -> Search[Ending]:
    plan = yield from search
    return (yield from meet_limits(problem, plan, limits, record))


def still_fast(problem: Problem, plan: Plan) -> Search[bool]:
    """Tell whether a plan that was changed last of all is within the problem's speed limits."""
    high_ms = yield from all_high_ms(problem)
    if high_ms is None or problem.speed is None:
        return False
    measurement = yield from measure_pace(plan, high_ms, "how fast the plan is")
    return isinstance(measurement, Measured) and measurement.pace.meets(
        problem.speed.needed(high_ms)
    )


def meet_limits(
    problem: Problem, plan: Plan, limits: SpeedLimits, record: Record
) -> Search[Ending]:
    """Make a plan that passed faster, and tell whether the speed limits hold.

    `record` holds what the run has timed before. If the limits do not hold, plans between the
    fastest that passes and all-low are measured, until the most accurate one that is fast enough
    is known. A measured plan within both limits is the answer if it also holds them when it is
    built afresh: a plan that was made faster is not minimal, and models need not be monotone.
    Otherwise the message names the nearest miss on either side.
    """
    graph = problem.graph or CostGraph((0.0,) * problem.size, ())
    high_ms = yield from all_high_ms(problem)
    if high_ms is None:
        return _too_slow("with every layer high nothing was timed")
    start = yield from measure_pace(plan, high_ms, "how fast the plan is")
    if not isinstance(start, Measured) or not start.outcome.passed:
        return _too_slow(_unmeasured(start))
    needed, low, slower = limits.needed(high_ms), None, ""
    best = yield from improve(problem, start, graph, high_ms)
    # Small steps first: they leave the answer near what was certified.
    if not best.pace.meets(needed):
        best = yield from _of_little_cost(problem, best, graph, high_ms, needed)
    if best.pace.meets(needed):
        slower = yield from _slower_afresh(best.plan, limits, high_ms)
        if not slower:
            return _changed(start, best)
    else:
        low = yield from descend(best, graph, high_ms, needed)
    # What the run has timed on its way may do, and costs one more build.
    other = yield from _another(record, {best.plan, Plan.all_high(problem.size)}, needed, high_ms)
    if other is not None:
        return _changed(start, other)
    if slower:
        return _too_slow(slower)
    reasons = [
        _slow(best, limits, high_ms, sum(outcome.passed for outcome in record.outcomes.values())),
        _fast(front(record.outcomes, high_ms), needed, problem.tolerance),
        f"even all low is only {low.speedup:.3g} times as fast"
        if low is not None and not low.meets(needed)
        else "",
    ]
    return _too_slow("; ".join(part for part in reasons if part))


def _of_little_cost(
    problem: Problem, best: Measured, graph: CostGraph, high_ms: float, needed: float
) -> Search[Measured]:
    """Return the fastest of a plan and a few of little cost under the law, or one fast enough.

    Steps from a plan do not reach one of other layers, which may be far faster.
    """
    if problem.tolerance is None or problem.large:
        return best
    ranking = yield from rank(problem)
    aim = problem.tolerance / law_factor(ranking.scores, {best.plan: best.outcome})
    tried = {best.plan}
    for plan in contenders(graph, ranking.scores, aim, [best.plan]):
        if plan in tried or len(tried) > MOST_OF_LITTLE_COST or best.pace.meets(needed):
            continue
        tried.add(plan)
        measurement = yield from measure_pace(plan, high_ms, "a plan of little cost")
        if (
            isinstance(measurement, Measured)
            and measurement.outcome.passed
            and measurement.pace.beats(best.pace)
        ):
            best = measurement
    return best


def _another(
    record: Record, tried: Set[Plan], needed: float, high_ms: float
) -> Search[Measured | None]:
    """Return the smallest plan in the record that holds both limits, built afresh too; or None.

    One measurement may have passed, or been fast, by luck.
    """
    paces = {
        plan: Pace.of(outcome.evidence.latency, high_ms)
        for plan, outcome in record.outcomes.items()
        if outcome.passed and plan not in tried
    }
    within = sorted(plan for plan, pace in paces.items() if pace and pace.meets(needed))
    for plan in within[:MOST_AFRESH]:
        outcome, pace = yield from _afresh(plan, high_ms)
        if outcome.passed and pace and (pace.meets(needed) or pace.is_close_to(needed)):
            return Measured(plan=plan, outcome=outcome, pace=pace)
    return None


def _afresh(plan: Plan, high_ms: float) -> Search[tuple[Outcome, Pace | None]]:
    """Build an answer afresh, as the re-check does: builders may choose other kernels."""
    (outcome,) = yield (
        Proposal(
            plan=plan,
            phase=Phase.RECHECK,
            kind=Kind.REBUILD,
            timed=True,
            reason="the answer, built afresh",
        ),
    )
    return outcome, Pace.of(outcome.evidence.latency, high_ms)


def _slower_afresh(plan: Plan, limits: SpeedLimits, high_ms: float) -> Search[str]:
    """Build an answer afresh; say by how much it misses the limits then, or "".

    A miss within the spread does not count.
    """
    outcome, pace = yield from _afresh(plan, high_ms)
    needed = limits.needed(high_ms)
    if not outcome.passed or pace is None or pace.meets(needed) or pace.is_close_to(needed):
        return ""
    return (
        f"the answer was fast enough, but built afresh it takes {pace.latency_ms(high_ms):.3g} ms,"
        f" {pace.speedup:.3g} times as fast as all high, and is to be {limits}"
    )


def descend(
    slow: Measured, graph: CostGraph, high_ms: float, needed: float
) -> Search[Pace | None]:
    """Measure plans below one that is too slow, to find the largest that is fast enough.

    They are nested: layers that save most error per millisecond are kept longest. It ends at once
    if even all-low is too slow. Returns the pace of all-low, None if it cannot be timed.
    """
    low = yield from measure_pace(Plan.of(()), high_ms, "every layer low")
    if not isinstance(low, Measured):
        return None
    if not low.pace.meets(needed):
        return low.pace
    order = yield from _by_worth(slow, graph)
    fast, too_slow = 0, len(order)
    while too_slow - fast > 1:
        middle = (fast + too_slow) // 2
        plan = Plan.of(order[:middle])
        measurement = yield from measure_pace(plan, high_ms, f"fast enough with {middle} kept?")
        if not (isinstance(measurement, Measured) and measurement.pace.meets(needed)):
            too_slow = middle
        # Fast enough, and it passes as well: that is an answer, which the record now holds.
        elif measurement.outcome.passed:
            break
        else:
            fast = middle
    return low.pace


def _slow(best: Measured, limits: SpeedLimits, high_ms: float, timed: int) -> str:
    """Say how far the fastest of the plans that passed and were timed is from the limits."""
    off = 100 * (limits.needed(high_ms) / best.pace.speedup - 1)
    return (
        f"of {counted(timed, 'plan')} within the tolerance that {'was' if timed == 1 else 'were'} "
        f"timed none is {limits}: the fastest keeps "
        f"{counted(len(best.plan), 'layer')} and takes {best.pace.latency_ms(high_ms):.3g} ms, "
        f"{best.pace.speedup:.3g} times as fast as all high, {off:.2g}% too slow"
    )


def _fast(points: Sequence[FrontPoint], needed: float, tolerance: float | None) -> str:
    """Say how far the most accurate plan within the speed limits is from the tolerance."""
    # A limit that is met exactly must not be missed by rounding.
    fast = [p for p in points if p.speedup is not None and p.speedup >= needed * (1 - 1e-9)]
    if not fast:
        return ""
    near = min(fast, key=lambda point: (point.axes[1], point.axes[0]))
    figure = "fails the check" if near.error is None else f"has error {near.error:.3g}"
    allowed = "" if tolerance is None else f", {tolerance:g} is allowed"
    return f"the most accurate that is fast enough keeps {near.kept_count} and {figure}{allowed}"


def _by_worth(slow: Measured, graph: CostGraph) -> Search[list[int]]:
    """Return the kept layers, the most error that they save per millisecond first."""
    layers = slow.plan.indices
    costs = {
        # At least a little, as error per millisecond is divided by it.
        layer: max(graph.gain(slow.plan.kept, slow.plan.kept - {layer}), 1e-9)
        for layer in layers
    }
    if len(layers) > _FORECAST_UP_TO:
        return sorted(layers, key=lambda layer: (costs[layer], layer))
    plans = [slow.plan.without((layer,)) for layer in layers]
    outcomes = yield from emulated_outcomes(plans, "what dropping each costs")
    errors = {
        layer: float("inf") if outcome.error is None else outcome.error
        for layer, outcome in zip(layers, outcomes, strict=True)
    }
    return sorted(layers, key=lambda layer: (-errors[layer] / costs[layer], layer))


def _unmeasured(measurement: Measured | Outcome) -> str:
    outcome = measurement.outcome if isinstance(measurement, Measured) else measurement
    why = outcome.message or "; ".join(outcome.evidence.notes) or "the backend gave no figure"
    return f"the answer could not be timed: {why}"


def _too_slow(message: str) -> Ending:
    return Ending(status=Status.INFEASIBLE, message=message, slow=True)


def _changed(start: Measured, best: Measured) -> Ending:
    """Return the ending with a plan in place of the one that was found, or with that."""
    if best.plan == start.plan:
        return Ending(status=Status.FOUND, plan=start.plan)
    message = (
        f"for speed the answer keeps {counted(len(best.plan), 'layer')} instead of the "
        f"{len(start.plan)} found first: {best.pace.speedup:.3g} instead of "
        f"{start.pace.speedup:.3g} times as fast as all high; that no fewer would do "
        "is not claimed of them"
    )
    return Ending(status=Status.FOUND, plan=best.plan, found=start.plan, message=message)


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
