"""How a demotion begins: the ranking, and the first beliefs.

Two plans are known from the preflight: all high and all low. With the ranking they tell how errors
add up, which decides what the search can learn from a figure.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.combinators import mapped
from precision_bisect.search.sensitivity import Sensitivity, rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.beliefs import Beliefs, normal_score, to_power
from precision_bisect_strategies.demotion import Demotion, ask_next, begun
from precision_bisect_strategies.speculation import speculate

FREE = 1e-9
"""Cost of a layer that costs nothing, in milliseconds or layers, so that error per cost exists."""


def demoted(problem: Problem) -> Search[Plan]:
    """Demote groups of layers from the curve's plan, or from all high; return the last plan."""
    sensitivity = yield from rank(problem)
    everything, nothing = Plan.all_high(problem.size), Plan.of(())
    # Both come from the ledger: the preflight has tried them.
    high = yield from ask(everything, "every layer high")
    low = yield from ask(nothing, "every layer low")
    forecast = yield from on_the_emulator(ask(nothing, "what is expected of it"))
    power = _power(sensitivity, forecast)
    ranked = _ranked(problem, _each(sensitivity, power), power)
    errors = [error for error, _, _ in ranked]
    # Without a power that adds up, a figure says nothing of the layers; only passing does.
    beliefs = Beliefs.at_first(
        errors,
        [cost for _, cost, _ in ranked],
        power=power if _figures(problem, errors, low, power) else None,
    )
    all_add = _added(high, low, power)
    if all_add is not None:
        beliefs = beliefs.learn_sum(range(len(ranked)), all_add)
    state = Demotion(
        order=tuple(layer for _, _, layer in ranked),
        beliefs=beliefs,
        limit=problem.tolerance,
        power=power,
        plan=everything,
        error=high.error,
        pool=tuple(range(len(ranked))),
        culprit=_culprit(problem, errors, power),
    )
    answers = {everything: high, nothing: low}
    if problem.passing is not None:
        state = yield from begun(state, problem.passing)
    return (yield from speculate(problem, ask_next, state, answers)).plan


def _power(sensitivity: Sensitivity, forecast: Outcome) -> float:
    """Return p such that errors to the power p add up: 1 where in step, 2 where independent.

    The forecast of all layers low decides: p is 1 if it lies nearer (as a ratio) to the sum of the
    single errors than to the root of the sum of their squares.
    """
    whole = forecast.error
    if whole is None or not math.isfinite(whole):
        return 2.0
    in_step = sum(error for error in _each(sensitivity, 1.0) if math.isfinite(error))
    apart = math.hypot(*(error for error in sensitivity.scores if math.isfinite(error)))
    # The geometric mean of both is half way between them on a logarithmic axis.
    return 1.0 if whole > math.sqrt(in_step * apart) else 2.0


def _added(high: Outcome, low: Outcome, power: float) -> float | None:
    """Return what all layers add, in errors to the power; None without finite figures."""
    if low.error is None or high.error is None or not math.isfinite(low.error):
        return None
    return to_power(low.error, power) - to_power(high.error, power)


def _each(sensitivity: Sensitivity, power: float) -> list[float]:
    """Return each layer's error; layers that share a block's error share it by the power."""
    scores = list(sensitivity.scores)
    for layer, size in sensitivity.shared.items():
        # The ranking has divided the block's error by sqrt(size); here it is by size^(1 / power).
        scores[layer] *= math.sqrt(size) / size ** (1 / power)
    return scores


def _ranked(
    problem: Problem, scores: Sequence[float], power: float
) -> list[tuple[float, float, int]]:
    """Return each layer's error to the power, its cost, and its index; the least sensitive first.

    The order is by error per cost.
    """
    costs = [max(cost, FREE) for cost in problem.costs] or [1.0] * problem.size
    rated = [
        (to_power(score, power), cost, layer)
        for layer, (score, cost) in enumerate(zip(scores, costs, strict=True))
    ]
    return sorted(rated, key=lambda rating: (rating[0] / rating[1], -rating[2]))


def _figures(problem: Problem, errors: Sequence[float], low: Outcome, power: float) -> bool:
    """Tell whether errors decide what is kept; otherwise layers that overflow do.

    Beside some of these, the finite errors decide if they add up to more than the tolerance.
    """
    if problem.tolerance is None or low.error is None:
        return False
    finite = [error for error in errors if math.isfinite(error)]
    # All finite: only an error of 0 everywhere, or an overflow of the whole, makes them useless.
    if len(finite) == len(errors):
        return sum(finite) > 0 and math.isfinite(low.error)
    return sum(finite) > to_power(problem.tolerance, power)


def _culprit(problem: Problem, errors: Sequence[float], power: float) -> float:
    """Return the normal score, of a place in the ranking, from which on a layer is a culprit.

    It is the place that as many layers lie above as break the limit alone.
    """
    limit = to_power(problem.tolerance or 0.0, power)
    # `not error <= limit` also counts NaN.
    count = sum(not error <= limit for error in errors)
    count = min(max(count, 1), max(len(errors) - 1, 1))
    # As a marginal rate, whose logarithm beliefs compare with scores: hence exp.
    return math.exp(normal_score(1 - count / max(len(errors), 2)))


def on_the_emulator(search: Search[T]) -> Search[T]:
    """Return the same search, asked of the emulator."""

    def ask(proposal: Proposal) -> Proposal:
        return replace(proposal, kind=Kind.PREDICT, phase=Phase.PREDICTION)

    return mapped(search, ask=ask)
