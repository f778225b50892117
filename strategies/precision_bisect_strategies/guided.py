"""The default: the emulator chooses, the engine decides, and every trial tells much."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.relay import relay
from precision_bisect.sensitivity import Sensitivity, by_sensitivity, rank
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.asking import ask, cheapest, unrepeated
from precision_bisect_strategies.choosing import chosen
from precision_bisect_strategies.leaps import QUADRATURE, SUM, Law, leap
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted
from precision_bisect_strategies.tuning import tuned
from precision_bisect_strategies.units import MOST, Rated, Unit, together

if TYPE_CHECKING:
    from precision_bisect_strategies.beliefs import Beliefs
    from precision_bisect_strategies.demotion import Demotion

ADDITIVE = 0.5
"""Errors add up where all layers low come to at least this share of the sum of each alone."""

MANY = 48
"""Where builds are noisy the ranking is checked if more layers than this are kept."""

TRUSTED = 0.9
"""From this expected correlation on a ranking that was checked is not given up any more."""

WATCHED = 24
"""At least so many sensitive layers are looked at to see whether neighbours act together."""

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
        from precision_bisect_strategies.alone import measurable
        from precision_bisect_strategies.exchanging import exchange
        from precision_bisect_strategies.hunting import hunt
        from precision_bisect_strategies.refining import cut, loosened, refined, unknown
        from precision_bisect_strategies.rounds import demote
        from precision_bisect_strategies.spending import refill
        from precision_bisect_strategies.starting import noisy, patience

        everything = Plan.all_high(problem.size)
        told = yield from rank(problem)
        scores = told.scores
        high = yield from ask(everything, "every layer high")
        low = yield from ask(Plan.of(()), "every layer low")
        forecast = yield from predicted(ask(Plan.of(()), "the error expected"), None)
        plan = hint = yield from chosen(problem, scores, _limit(problem, low, forecast))
        units = yield from _units(problem, told, plan)
        room = _room(problem, high, units, scores, forecast)
        leaps = problem.predicts and math.isfinite(sum(scores))
        leaps = leaps and (room is None or noisy(problem))
        if leaps:
            plan = yield from _leapt(problem, scores, plan, QUADRATURE if room is None else SUM)
            units = _parted(units, plan)
        ranked = _ranked(problem, units, scores, plan)
        course, least = _Course(problem, room, high, low, hint), high.error or 0.0
        state, dropped = course.start(ranked, plan)
        refinable = problem.predicts and bool(unknown(told))
        stops = refinable and not noisy(problem)
        poor = yield from _poor(course, state, ranked, dropped)
        if not poor:
            sure = poor is not None and state.beliefs.rho > TRUSTED
            patient = None if sure else patience(problem, state, checked=poor is not None)
            state = yield from demote(state, dropped, patient, refinable=stops)
        if not (state.settled() or stops or (yield from measurable(problem, ranked, least))):
            state = yield from demote(state, dropped if poor else None)
        if not state.settled():
            if refinable:
                told = yield from refined(problem, told)
                units = yield from _units(problem, told, plan, problem.size)
                units = _parted(units, plan) if leaps else units
                if stops:
                    state = loosened(state, units)
                    units = cut(units, state)
                ranked = _ranked(problem, units, told.scores, plan)
                dropped = _dropped(ranked, plan)
            go_on = _refined if stops else _alone
            state = yield from go_on(course, state, ranked, dropped)
        yield from refill(state)
        while (yield from hunt(state)):
            state = yield from demote(state, None)
        yield from refill(state)
        yield from exchange(state)
        return state.plan


@dataclass(frozen=True, slots=True)
class _Course:
    """What holds from the beginning to the end of a demotion; see `started`."""

    problem: Problem
    room: float | None
    high: Outcome
    low: Outcome
    hint: Plan

    def start(self, ranked: Sequence[Rated], plan: Plan) -> "tuple[Demotion, int]":
        """Return the state in which nothing is decided on, and how many `plan` drops."""
        from precision_bisect_strategies.starting import started

        dropped = _dropped(ranked, plan)
        state = started(self.problem, ranked, dropped, self.room, self.high, self.low, self.hint)
        return state, dropped

    def believed(self, ranked: Sequence[Rated], dropped: int) -> "Beliefs":
        """Return what is believed of another ranking, the first `dropped` of it likely to go."""
        from precision_bisect_strategies.starting import believed

        return believed(self.problem, ranked, dropped, self.room)


def _poor(
    course: _Course, state: "Demotion", ranked: Sequence[Rated], dropped: int
) -> Search[bool | None]:
    """Tell, where noise would hide it, whether the ranking is poor, by what a few layers add.

    None where that is not told: without noise, where that hides what single layers add, and where
    so few are kept that to try each takes hardly more builds.
    """
    from precision_bisect_strategies.alone import checked
    from precision_bisect_strategies.rounds import POOR
    from precision_bisect_strategies.starting import noisy

    kept, beliefs = len(ranked) - dropped, state.beliefs
    if not noisy(course.problem) or not beliefs.figures or kept <= MANY:
        return None
    least = course.high.error or 0.0
    told = yield from checked(course.problem, ranked, beliefs, least, kept)
    return beliefs.rho < POOR if told else None


def _refined(
    course: _Course, state: "Demotion", ranked: Sequence[Rated], dropped: int
) -> "Search[Demotion]":
    """Go on along a ranking for which every layer was measured by the emulator."""
    from precision_bisect_strategies.refining import moved
    from precision_bisect_strategies.rounds import demote
    from precision_bisect_strategies.starting import added

    beliefs = course.believed(ranked, dropped)
    return (yield from demote(moved(state, ranked, beliefs, added(course.low, course.high)), None))


def _alone(
    course: _Course, state: "Demotion", ranked: Sequence[Rated], dropped: int
) -> "Search[Demotion]":
    """Begin anew along what units add alone, which the engine tells in spite of its noise."""
    from precision_bisect_strategies.alone import ranked_alone
    from precision_bisect_strategies.rounds import demote
    from precision_bisect_strategies.starting import added

    problem, best = course.problem, state.best
    beliefs = course.believed(ranked, dropped)
    if not beliefs.figures:
        return (yield from demote(state, None))
    if (everything := added(course.low, course.high)) is not None:
        beliefs.learn_sum(list(range(len(ranked))), everything)
    again, guess = yield from ranked_alone(problem, ranked, beliefs, course.high.error or 0.0)
    scores = [0.0] * problem.size
    for each in again:
        for layer in each.unit:
            scores[layer] = each.rate * each.cost / len(each.unit)
    plan = Plan.of(layer for each in again[guess:] for layer in each.unit)
    plan = yield from _leapt(problem, scores, plan, SUM)
    again.sort(key=lambda each: (not plan.kept.isdisjoint(each.unit), each.rate))
    state, dropped = course.start(again, plan)
    state.best = best
    return (yield from demote(state, dropped))


def _dropped(ranked: Sequence[Rated], plan: Plan) -> int:
    """Return how many units a plan does not keep."""
    return sum(plan.kept.isdisjoint(each.unit) for each in ranked)


def _cost(problem: Problem) -> Callable[[Plan], float]:
    """Return what a plan costs: what its layers do, or one for each."""
    if not problem.costs:
        return len
    return lambda plan: sum(problem.costs[layer] for layer in plan.indices)


def _costs(problem: Problem) -> list[float]:
    """Return what keeping each layer costs."""
    return [max(cost, LEAST) for cost in problem.costs] or [1.0] * problem.size


def _leapt(problem: Problem, scores: Sequence[float], plan: Plan, law: Law) -> Search[Plan]:
    """Return the plan to go on from where luck decides near the limit: this one, or less."""
    built: list[tuple[Plan, Outcome]] = []

    def note(proposal: Proposal, outcome: Outcome) -> Outcome:
        if proposal.kind is not Kind.PREDICT:
            built.append((proposal.plan, outcome))
        return outcome

    if law is QUADRATURE:
        plan = yield from relay(tuned(problem, by_sensitivity(scores), plan), tell=note)
    else:
        yield from relay(ask(plan, f"what was chosen: {len(plan)} of {problem.size}"), tell=note)
    return (yield from leap(problem, scores, _costs(problem), built, law)) or plan


def _units(
    problem: Problem, told: Sensitivity, plan: Plan, most: int = MOST
) -> Search[list[Unit]]:
    """Return what is decided on together; looked for where that saves builds."""
    if not problem.predicts:
        return [(layer,) for layer in range(problem.size)]
    return (yield from together(problem, told, max(3 * len(plan), WATCHED), most))


def _parted(units: Sequence[Unit], plan: Plan) -> list[Unit]:
    """Return each unit's layers that a plan does not keep, and those that it keeps."""
    parts = (
        tuple(layer for layer in unit if (layer in plan.kept) is kept)
        for unit in units
        for kept in (False, True)
    )
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
