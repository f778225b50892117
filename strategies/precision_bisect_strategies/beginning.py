"""How a demotion begins: the ranking, which layers act together, and the first beliefs.

Two plans are known from the preflight: all high and all low. With the ranking they tell how errors
add up, which decides what the search can learn from a figure.

Two neighbours act together if their joint error is that of the worse one alone: members of one
normalization, or of one fused kernel. Keeping one of them is no use without the other. A ranking
one by one puts them far apart by whatever it gets wrong of each. Simulated searches took 1.21
times the builds without units (n = 200, k = 20, six structures).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.combinators import mapped
from precision_bisect.search.sensitivity import Sensitivity, measure_groups, rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.beliefs import Beliefs, normal_score, to_power
from precision_bisect_strategies.demotion import Demotion, ask_next, begun
from precision_bisect_strategies.speculation import speculate

MOST_PAIRED = 1000
"""Most sensitive layers whose pairs are looked at, usually at most. Half and double change nothing
in benchmarks/constants.py."""
NEIGHBOUR_DISTANCE = 16
"""Distance in the network, in layers, from which on two layers are no neighbours. Half and double
change no more than chance does in benchmarks/constants.py."""
MILDER_SHARE = 0.03
"""Least share of the worse layer's error that the milder one must have: a smaller one is lost in
the joint error. Half: forecasts +1%; double: no more than chance, in benchmarks/constants.py."""
JOINT_DISTANCE = 4
"""Largest distance of two layers that may act together with the layers in between, which add too
little to tell. Half and double change no more than chance does in benchmarks/constants.py."""
OFTEN = 0.33
"""Share of the neighbours' pairs that must act together for such distant pairs to be looked at:
where errors partly cancel, some seem to by chance (the figures are in strategies/README.md)."""
LITTLE = 0.1
MUCH = 0.5
"""Shares of the milder layer's error: a pair that acts together adds at most `LITTLE` of it, one
that does not adds at least `MUCH`. Half and double change no more than chance does in
benchmarks/constants.py."""

Unit: TypeAlias = tuple[int, ...]
"""Layers that are decided on together, in network order."""
Joined: TypeAlias = frozenset[int]
"""Layers each of which acts together with the next one."""


def in_units(
    problem: Problem, sensitivity: Sensitivity, watched: int, most: int = MOST_PAIRED
) -> Search[list[Unit]]:
    """Return all layers in units, in network order; neighbours that act together share one.

    First the pairs of the `watched` most sensitive layers are looked at. If one acts together,
    those of the `most` most sensitive follow. If many do, so do pairs with layers in between that
    add too little to tell. Layers that were not measured alone are left out.
    """
    scores = sensitivity.scores
    ranked = sorted(range(problem.size), key=lambda layer: (-scores[layer], layer))
    pairs = _pairs(sensitivity, frozenset(ranked[:watched]))
    # The first look is a sample: where none acts together, the full one is not worth its
    # forecasts.
    if not (yield from _acting(problem, scores, ranked, pairs)):
        return [(layer,) for layer in range(problem.size)]
    among = frozenset(ranked[:most])
    pairs = _pairs(sensitivity, among)
    joined = yield from _acting(problem, scores, ranked, pairs)
    apart = frozenset(one for one, _ in pairs) - joined
    farthest = JOINT_DISTANCE if len(joined) >= OFTEN * len(pairs) else 1
    for distance in range(2, farthest + 1):
        pairs = [
            pair
            for pair in _pairs(sensitivity, among, distance)
            if apart.isdisjoint(range(*pair)) and not joined.issuperset(range(*pair))
        ]
        joined |= yield from _acting(problem, scores, ranked, pairs)
    units: list[Unit] = []
    for layer in range(problem.size):
        if layer - 1 in joined:
            units[-1] = (*units[-1], layer)
        else:
            units.append((layer,))
    return units


def _pairs(
    sensitivity: Sensitivity, among: frozenset[int], distance: int = 1
) -> list[tuple[int, int]]:
    """Return the pairs to look at with this distance and only milder layers in between."""
    scores = sensitivity.scores
    pairs = []
    for one in range(len(scores) - distance):
        pair = one, one + distance
        ends = scores[one], scores[one + distance]
        between = max(scores[one + 1 : one + distance], default=-math.inf)
        if (
            not among.isdisjoint(pair)
            and sensitivity.shared.keys().isdisjoint(pair)
            and between < min(ends)
            and MILDER_SHARE * max(ends) < min(ends)
            and max(ends) < math.inf
        ):
            pairs.append(pair)
    return pairs


def _acting(
    problem: Problem,
    scores: Sequence[float],
    ranked: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> Search[Joined]:
    """Return the layers of pairs that act together, without the last layer of each pair.

    A control goes with each such pair: the worse layer with a far one that is as sensitive as the
    milder. If the errors of the control do not add up either, those of the neighbours prove
    nothing.
    """
    joint = yield from measure_groups(problem, pairs)
    suspects = [
        pair
        for pair, error in zip(pairs, joint, strict=True)
        if error <= _level(pair, scores, LITTLE)
    ]
    controls = [_control(pair, scores, ranked) for pair in suspects]
    apart = yield from measure_groups(problem, controls)
    return frozenset(
        layer
        for pair, control, error in zip(suspects, controls, apart, strict=True)
        if error >= _level(control, scores, MUCH)
        for layer in range(*pair)
    )


def _level(pair: tuple[int, int], scores: Sequence[float], share: float) -> float:
    one, other = scores[pair[0]], scores[pair[1]]
    return max(one, other) + share * min(one, other)


def _control(
    pair: tuple[int, int], scores: Sequence[float], ranked: Sequence[int]
) -> tuple[int, int]:
    """Return the worse layer and one far from both that is as sensitive as the milder one."""
    worse, milder = sorted(pair, key=lambda layer: -scores[layer])
    # `ranked` is sorted by score, so layers as sensitive as the milder one stand around its place.
    at = bisect_left(ranked, (-scores[milder], milder), key=lambda i: (-scores[i], i))
    near = (
        i
        for i in ranked[max(0, at - NEIGHBOUR_DISTANCE) : at + NEIGHBOUR_DISTANCE]
        if abs(i - worse) >= NEIGHBOUR_DISTANCE
    )
    other = min(near, key=lambda i: (abs(scores[i] - scores[milder]), i), default=milder)
    return worse, other


FREE = 1e-9
"""Cost of a layer that costs nothing, in milliseconds or layers, so that error per cost exists."""
WATCHED = 48
"""Sensitive layers whose neighbours are looked at first, to see whether any act together: one
forecast for each pair. A bound. Half: forecasts -5%; double: forecasts +9%, in
benchmarks/constants.py."""


def demoted(problem: Problem) -> Search[Plan]:
    """Demote groups of layers from the curve's plan, or from all high; return the last plan."""
    sensitivity = yield from rank(problem)
    everything, nothing = Plan.all_high(problem.size), Plan.of(())
    # Both come from the ledger: the preflight has tried them.
    high = yield from ask(everything, "every layer high")
    low = yield from ask(nothing, "every layer low")
    forecast = yield from on_the_emulator(ask(nothing, "what is expected of it"))
    power = _power(sensitivity, forecast)
    units: list[Unit] = [(layer,) for layer in range(problem.size)]
    # Only beside an engine: on the emulator a single trial costs no more than the look at a pair.
    if problem.builds:
        units = yield from in_units(problem, sensitivity, WATCHED)
    ranked = _ranked(problem, units, _each(sensitivity, power), power)
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
        order=tuple(unit for _, _, unit in ranked),
        beliefs=beliefs,
        limit=problem.tolerance,
        power=power,
        plan=everything,
        error=high.error,
        pool=tuple(range(len(ranked))),
        culprit=_culprit(problem, errors, power),
        chosen=_alone(problem, sensitivity.scores),
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
    problem: Problem, units: Sequence[Unit], scores: Sequence[float], power: float
) -> list[tuple[float, float, Unit]]:
    """Return each unit's error to the power, its cost, and its layers; the least sensitive first.

    The order is by error per cost. A unit has the largest error of its members, since keeping
    fewer than all of them gains nothing.
    """
    costs = [max(cost, FREE) for cost in problem.costs] or [1.0] * problem.size
    rated = [
        (
            to_power(max(scores[layer] for layer in unit), power),
            sum(costs[layer] for layer in unit),
            unit,
        )
        for unit in units
    ]
    return sorted(rated, key=lambda rating: (rating[0] / rating[1], -rating[2][0]))


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


def _alone(problem: Problem, scores: Sequence[float]) -> frozenset[int]:
    """Return the layers that break the limit each alone, by the emulator."""
    limit = problem.tolerance or 0.0
    return frozenset(layer for layer, error in enumerate(scores) if not error <= limit)


def on_the_emulator(search: Search[T]) -> Search[T]:
    """Return the same search, asked of the emulator."""

    def ask(proposal: Proposal) -> Proposal:
        return replace(proposal, kind=Kind.PREDICT, phase=Phase.PREDICTION)

    return mapped(search, ask=ask)
