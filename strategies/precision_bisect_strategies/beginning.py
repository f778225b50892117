"""How a demotion begins: the ranking, what acts together, and what is believed of it."""

import math
from collections.abc import Sequence
from dataclasses import replace

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.combinators import mapped
from precision_bisect.search.sensitivity import Sensitivity, rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.beliefs import Beliefs, normal_score
from precision_bisect_strategies.demotion import Demotion, begun, step
from precision_bisect_strategies.speculation import speculate
from precision_bisect_strategies.units import Unit, together

FREE = 1e-9
"""What a layer costs at least, so that an error per cost exists."""
ROUNDING = 0.5
"""Finite errors that come to this share of the tolerance decide what is kept, overflows or not."""
WATCHED = 48
"""So many sensitive layers are looked at to see whether neighbours act together."""


def demoted(problem: Problem) -> Search[Plan]:
    """Return the plan that groups of layers are demoted to, from the curve's plan or all-high."""
    told = yield from rank(problem)
    everything, nothing = Plan.all_high(problem.size), Plan.of(())
    high = yield from ask(everything, "every layer high")
    low = yield from ask(nothing, "every layer low")
    forecast = yield from predicted(ask(nothing, "what is expected of it"))
    power = _power(told, forecast)
    units: list[Unit] = [(layer,) for layer in range(problem.size)]
    if problem.predicts:
        units = yield from together(problem, told, WATCHED)
    ranked = _ranked(problem, units, _each(told, power), power)
    errors = [error for error, _, _ in ranked]
    beliefs = Beliefs.at_first(
        errors,
        [cost for _, cost, _ in ranked],
        power=power if _figures(problem, errors, low, power) else None,
    )
    all_add = _added(high, low, power)
    if all_add is not None:
        beliefs = beliefs.learn_sum(range(len(ranked)), all_add)
    state = Demotion(
        order=tuple(unit for _, _, unit in ranked),
        beliefs=beliefs,
        limit=problem.tolerance,
        power=power,
        plan=everything,
        error=high.error,
        pool=tuple(range(len(ranked))),
        culprit=_culprit(problem, errors, power),
        chosen=_alone(problem, told.scores),
    )
    known = {everything: high, nothing: low}
    if problem.passing is not None:
        state = yield from begun(state, problem.passing)
    return (yield from speculate(problem, step, state, known)).plan


def _power(told: Sensitivity, forecast: Outcome) -> float:
    """Return the power of errors that adds up: 1 where they are in step, 2 where independent.

    By what all layers low are forecast to come to.
    """
    whole = forecast.error
    if whole is None or not math.isfinite(whole):
        return 2.0
    in_step = sum(error for error in _each(told, 1.0) if math.isfinite(error))
    apart = math.hypot(*(error for error in told.scores if math.isfinite(error)))
    return 1.0 if whole > math.sqrt(in_step * apart) else 2.0


def _added(high: Outcome, low: Outcome, power: float) -> float | None:
    """Return what all layers add, in errors to the power; None without finite figures."""
    if low.error is None or high.error is None or not math.isfinite(low.error):
        return None
    return float(max(low.error, 0.0) ** power - max(high.error, 0.0) ** power)


def _each(told: Sensitivity, power: float) -> list[float]:
    """Return each layer's error; those that share a block's by what adds up."""
    scores = list(told.scores)
    for layer, size in told.shared.items():
        scores[layer] *= math.sqrt(size) / size ** (1 / power)
    return scores


def _ranked(
    problem: Problem, units: Sequence[Unit], scores: Sequence[float], power: float
) -> list[tuple[float, float, Unit]]:
    """Return each unit's error to the power, its cost, and its layers; the least sensitive first.

    By error per cost. Members of one unit show its error each.
    """
    costs = [max(cost, FREE) for cost in problem.costs] or [1.0] * problem.size
    rated = [
        (
            max(max(scores[layer] for layer in unit), 0.0) ** power,
            sum(costs[layer] for layer in unit),
            unit,
        )
        for unit in units
    ]
    return sorted(rated, key=lambda each: (each[0] / each[1], -each[2][0]))


def _figures(problem: Problem, errors: Sequence[float], low: Outcome, power: float) -> bool:
    """Tell whether errors decide what is kept; else layers that overflow do."""
    if problem.tolerance is None or low.error is None:
        return False
    finite = [error for error in errors if math.isfinite(error)]
    if len(finite) == len(errors):
        return sum(finite) > 0 and math.isfinite(low.error)
    return bool(sum(finite) > (ROUNDING * problem.tolerance) ** power)


def _culprit(problem: Problem, errors: Sequence[float], power: float) -> float:
    """Return from which normal score on, of its place in the ranking, a layer is a culprit."""
    limit = (problem.tolerance or 0.0) ** power
    count = sum(not error <= limit for error in errors)
    count = min(max(count, 1), max(len(errors) - 1, 1))
    return math.exp(normal_score(1 - count / max(len(errors), 2)))


def _alone(problem: Problem, scores: Sequence[float]) -> frozenset[int]:
    """Return the layers that break the limit each alone, as the emulator has it."""
    limit = problem.tolerance or 0.0
    return frozenset(layer for layer, error in enumerate(scores) if not error <= limit)


def predicted(search: Search[T]) -> Search[T]:
    """Return the same search, asked of the emulator."""

    def ask(proposal: Proposal) -> Proposal:
        return replace(proposal, kind=Kind.PREDICT, phase=Phase.PREDICTION)

    return mapped(search, ask=ask)
