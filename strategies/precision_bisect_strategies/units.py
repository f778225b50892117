"""Layers that act together: decided on as one.

Two neighbours act together if their joint error is that of the worse one alone: members of one
normalization, or of one fused kernel. Keeping one of them is no use without the other. A ranking
one by one puts them far apart by whatever it gets wrong of each.

Simulated searches took 1.21 times the builds without units (n = 200, k = 20, six structures).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

from precision_bisect.protocols import Problem, Search
from precision_bisect.search.sensitivity import Sensitivity, measure_groups

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
