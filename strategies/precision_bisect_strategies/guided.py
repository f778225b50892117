"""The default: the emulator chooses, the engine decides, and every trial tells much."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.relay import relay
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.asking import ask, cheapest, unrepeated
from precision_bisect_strategies.choosing import chosen
from precision_bisect_strategies.leaps import leap
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted
from precision_bisect_strategies.ranking import Sensitivity, by_sensitivity, rank
from precision_bisect_strategies.tuning import tuned
from precision_bisect_strategies.units import Rated, Unit, together

ADDITIVE = 0.5
"""Errors add up where all layers low come to at least this share of the sum of each alone."""

LEAST = 1e-9
"""What a layer costs at least, so that an error per cost exists."""


class Guided:
    """Searches along a ranking by sensitivity, and learns how good the ranking is.

    The emulator ranks the layers and chooses a plan. From there on groups of layers are demoted on
    top of what passed (see `demotion`), as large as the outcomes so far make likely to pass (see
    `beliefs`). A poor ranking or emulator costs trials, never correctness.
    """

    name: ClassVar[str] = "guided"
    assumption: ClassVar[str] = "the emulator's sensitivities say something of the engine's"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Rank, choose, demote; what is known is not asked again."""
        return (yield from cheapest(unrepeated(self._search(problem)), _cost(problem)))

    def _search(self, problem: Problem) -> Search[Plan]:
        from precision_bisect_strategies.alone import ranked_alone
        from precision_bisect_strategies.refining import moved, refined, unknown
        from precision_bisect_strategies.rounds import demote
        from precision_bisect_strategies.spending import exchange, refill
        from precision_bisect_strategies.starting import added, believed, noisy, patience, started

        everything = Plan.all_high(problem.size)
        told = yield from rank(problem)
        scores = told.scores
        high = yield from ask(everything, "every layer high")
        low = yield from ask(Plan.of(()), "every layer low")
        forecast = yield from predicted(ask(Plan.of(()), "the error expected"), None)
        plan = hint = yield from chosen(problem, scores, _limit(problem, low, forecast))
        units = yield from _units(problem, told, plan)
        room = _room(problem, high, units, scores, forecast)
        if room is None and problem.predicts and math.isfinite(sum(scores)):
            plan = yield from _leapt(problem, scores, plan)
            units = [part for unit in units for part in _parted(unit, plan)]
        ranked = _ranked(problem, units, scores, plan)
        dropped = sum(plan.kept.isdisjoint(each.unit) for each in ranked)
        state = started(problem, ranked, dropped, room, high, low, hint)
        patient = patience(problem, state)
        refinable = problem.predicts and bool(unknown(told)) and not noisy(problem)
        refinable = refinable and len(units) == problem.size
        state = yield from demote(state, dropped, patient, refinable=refinable)
        if refinable and not state.settled():
            ranked = _ranked(problem, units, (yield from refined(problem, told)), plan)
            beliefs = believed(problem, ranked, dropped, room)
            state = yield from demote(moved(state, ranked, beliefs, added(low, high)), None)
        elif not state.settled():
            alone = yield from ranked_alone(problem, ranked, high.error or 0.0)
            if alone is not None:
                best, state = state.best, started(problem, *alone, room, high, low, hint)
                state.best = best
            state = yield from demote(state, None if alone is None else alone[1])
        yield from refill(state)
        yield from exchange(state)
        return state.plan


def _cost(problem: Problem) -> Callable[[Plan], float]:
    """Return what a plan costs: what its layers do, or one for each."""
    if not problem.costs:
        return len
    return lambda plan: sum(problem.costs[layer] for layer in plan.indices)


def _costs(problem: Problem) -> list[float]:
    """Return what keeping each layer costs."""
    return [max(cost, LEAST) for cost in problem.costs] or [1.0] * problem.size


def _leapt(problem: Problem, scores: Sequence[float], plan: Plan) -> Search[Plan]:
    """Return the plan to go on from where errors do not just add up: the emulator's, or less."""
    built: list[tuple[Plan, Outcome]] = []

    def note(proposal: Proposal, outcome: Outcome) -> Outcome:
        if proposal.kind is not Kind.PREDICT:
            built.append((proposal.plan, outcome))
        return outcome

    plan = yield from relay(tuned(problem, by_sensitivity(scores), plan), tell=note)
    return (yield from leap(problem, scores, _costs(problem), built)) or plan


def _units(problem: Problem, told: Sensitivity, plan: Plan) -> Search[list[Unit]]:
    """Return what is decided on together; looked for where that saves builds."""
    if not problem.predicts:
        return [(layer,) for layer in range(problem.size)]
    return (yield from together(problem, told, 3 * len(plan)))


def _parted(unit: Unit, plan: Plan) -> list[Unit]:
    """Return the unit's layers that a plan keeps, and those that it does not."""
    parts = [
        tuple(layer for layer in unit if (layer in plan.kept) is kept) for kept in (False, True)
    ]
    return [part for part in parts if part]


def _limit(problem: Problem, low: Outcome, forecast: Outcome) -> float | None:
    """Return the tolerance on the emulator's scale, which all-low tells on both, with a margin."""
    limit = corrected(problem.tolerance, forecast.error, low.error) or problem.tolerance
    if limit is None or not problem.predicts:
        return limit
    needed = math.inf if forecast.error is None else max(forecast.error - limit, 0.0)
    return limit - (1 - SAFETY) * min(limit, needed)


def _room(
    problem: Problem,
    high: Outcome,
    units: Sequence[Unit],
    scores: Sequence[float],
    forecast: Outcome,
) -> float | None:
    """Return the error that low layers may add up to; None where errors do not add up."""
    if problem.tolerance is None or high.error is None or forecast.error is None:
        return None
    total = sum(max(scores[layer] for layer in unit) for unit in units)
    if not math.isfinite(total) or forecast.error < ADDITIVE * total:
        return None
    return problem.tolerance - high.error


def _ranked(
    problem: Problem, units: Sequence[Unit], scores: Sequence[float], plan: Plan
) -> list[Rated]:
    """Return the units, the least sensitive first.

    Those that the emulator keeps come last. Members of one unit show its error each.
    """
    costs = _costs(problem)
    rated = []
    for unit in units:
        cost = sum(costs[layer] for layer in unit)
        rated.append(Rated(unit, max(scores[layer] for layer in unit) / cost, cost))
    return sorted(
        rated, key=lambda each: (not plan.kept.isdisjoint(each.unit), each.rate, -each.unit[0])
    )
