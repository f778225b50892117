"""Layers that act together: decided on as one.

Where the error of two neighbours low together is that of the worse one alone, keeping one of them
is no use without the other: members of one normalization, of one fused kernel. Ranked one by one,
such layers are torn apart by whatever the ranking gets wrong about each.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from precision_bisect.protocols import Problem, Search
from precision_bisect.search.sensitivity import Sensitivity, measure

MOST = 1000
"""Usually at most so many layers are looked at."""
FAR = 16
"""Layers so far apart in the network are no neighbours."""
SHARE = 0.03
"""Pairs are looked at where the milder layer has at least this share of the worse one's error."""
APART = 4
"""Layers so far apart may act together, and those in between, which add too little to tell."""
OFTEN = 0.33
"""Such ones are looked at where this share of the pairs of neighbours act together: of errors that
partly cancel out, some seem to by chance."""
LITTLE = 0.1
MUCH = 0.5
"""Of the milder layer's error, a pair that acts together adds little, one that does not much."""

Unit: TypeAlias = tuple[int, ...]
"""Layers that are decided on together, in network order."""
Joined: TypeAlias = frozenset[int]
"""Layers each of which acts together with the next one."""


class Rated(NamedTuple):
    """A unit with the error per cost that it is believed to add, and what keeping it costs."""

    unit: Unit
    rate: float
    cost: float


def together(
    problem: Problem, told: Sensitivity, watched: int, most: int = MOST
) -> Search[list[Unit]]:
    """Return all layers in units, in network order: neighbours that act together in one.

    Pairs of the `watched` most sensitive layers are looked at, and where there is one that acts
    together, those of the `most` most sensitive. Where neighbours often act together, so are pairs
    with layers in between that add too little to tell. Not of layers that were not measured alone.
    """
    scores = told.scores
    ranked = sorted(range(problem.size), key=lambda layer: (-scores[layer], layer))
    pairs = _pairs(told, frozenset(ranked[:watched]))
    if not (yield from _acting(problem, scores, ranked, pairs)):
        return [(layer,) for layer in range(problem.size)]
    among = frozenset(ranked[:most])
    pairs = _pairs(told, among)
    joined = yield from _acting(problem, scores, ranked, pairs)
    apart = frozenset(one for one, _ in pairs) - joined
    farthest = APART if len(joined) >= OFTEN * len(pairs) else 1
    for distance in range(2, farthest + 1):
        pairs = [
            pair
            for pair in _pairs(told, among, distance)
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


def _pairs(told: Sensitivity, among: frozenset[int], distance: int = 1) -> list[tuple[int, int]]:
    """Return pairs to look at that far apart, with only milder layers in between."""
    scores = told.scores
    pairs = []
    for one in range(len(scores) - distance):
        pair = one, one + distance
        between = max(scores[one + 1 : one + distance], default=-math.inf)
        if (
            not among.isdisjoint(pair)
            and told.shared.keys().isdisjoint(pair)
            and between < min(scores[one], scores[one + distance])
            and _comparable(scores[one], scores[one + distance])
        ):
            pairs.append(pair)
    return pairs


def _acting(
    problem: Problem,
    scores: Sequence[float],
    ranked: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> Search[Joined]:
    """Return the layers of pairs that act together, but for each pair's last.

    For each such pair one layer is also paired with one far away that is as sensitive as the
    other: where such errors do not add either, that neighbours' do not says nothing.
    """
    joint = yield from measure(problem, pairs)
    suspects = [
        pair
        for pair, error in zip(pairs, joint, strict=True)
        if error <= _level(pair, scores, LITTLE)
    ]
    controls = [_control(pair, scores, ranked) for pair in suspects]
    apart = yield from measure(problem, controls)
    return frozenset(
        layer
        for pair, control, error in zip(suspects, controls, apart, strict=True)
        if error >= _level(control, scores, MUCH)
        for layer in range(*pair)
    )


def _comparable(one: float, other: float) -> bool:
    worse = max(one, other)
    return worse < math.inf and min(one, other) > SHARE * worse


def _level(pair: tuple[int, int], scores: Sequence[float], share: float) -> float:
    one, other = scores[pair[0]], scores[pair[1]]
    return max(one, other) + share * min(one, other)


def _control(
    pair: tuple[int, int], scores: Sequence[float], ranked: Sequence[int]
) -> tuple[int, int]:
    """Return the worse layer and one far from both that is as sensitive as the milder one."""
    worse, milder = sorted(pair, key=lambda layer: -scores[layer])
    at = bisect_left(ranked, (-scores[milder], milder), key=lambda i: (-scores[i], i))
    near = (i for i in ranked[max(0, at - FAR) : at + FAR] if abs(i - worse) >= FAR)
    other = min(near, key=lambda i: (abs(scores[i] - scores[milder]), i), default=milder)
    return worse, other
