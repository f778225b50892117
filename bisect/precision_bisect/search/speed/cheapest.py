"""The cheapest plan that the law of rounding allows, by simulated annealing on a cost graph.

S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220
(1983). A state is a plan. A move changes the type of one layer, or of a connected group of layers
that have the same type, so that an island appears or goes as a whole: a step on the way would add
Casts; or of such a group and any one layer. A plan is allowed while the root of the sum of the
squared errors of its low layers (see `rounding_law`) is within a limit. It asks no engine and no
emulator, counts moves instead of seconds, and is deterministic given its seed.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence

from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.search.speed.moves import filled

MOVES, LEAST_MOVES, MOST_MOVES = 50, 2_000, 30_000
"""Moves for each layer and start, and the fewest and most of a start: bounds on time. NAFNet (300
layers) takes half a second a start, and a plan of the same cost as with three times as many."""
HOT, COLD = 0.5, 0.002
"""Temperatures at the first and the last move, in units of the mean cost of a change."""
SWAPS = 0.25
"""Share of the moves that change one more layer, anywhere: where the limit leaves no room, one has
to be kept for others."""
WHOLE = 0.5
"""Share of the moves at a piece of a fused kernel that change all its pieces of one type."""
LARGEST_GROUP = 24
"""Layers that change their type together, at most. A bound."""
MATTERS = 0.01
"""Share of the low layers' squared error from which a layer is worth keeping for room alone. A
bound: at most a hundred are looked at."""
# What costs less costs nothing.
_FREE_MS = 1e-9


def cheapest(
    graph: CostGraph,
    errors: Sequence[float],
    limit: float,
    starts: Iterable[Plan],
    pinned: frozenset[int] = frozenset(),
    seed: int = 0,
) -> list[Plan]:
    """Return a plan for each start that the law allows, the one of least cost first.

    `errors` has what each layer adds if it alone runs low, in network order and on the scale of
    `limit`; layers with an infinite error, and those that are `pinned`, are kept. Gaps that cost
    more than they save are closed at the end. There is no plan where not even every layer high
    would do, which needs a limit below zero.
    """
    if limit < 0:
        return []
    budget = limit * limit
    squares = [
        math.inf if not math.isfinite(error) or layer in pinned else error * error
        for layer, error in enumerate(errors)
    ]
    plans = {
        Plan.of(filled(graph, _Annealing(graph, squares, budget, start, seed + place).run()))
        for place, start in enumerate(starts)
    }
    return sorted(plans, key=lambda plan: (graph.cost(plan.kept), plan))


def with_room(graph: CostGraph, errors: Sequence[float], plan: Plan, most_ms: float) -> Plan:
    """Return the plan with further layers kept that take error off, for at most `most_ms` in all.

    They are taken by the squared error that a millisecond saves: one alone, or two that exchange a
    value, since what is out of range in one is so in the next. `errors` are as in `cheapest`.
    """
    kept, left_ms = plan.kept, most_ms
    squares = {i: e * e for i, e in enumerate(errors) if i not in kept and math.isfinite(e)}
    # Layers that carry next to nothing of the error cost time, and give no room.
    least = MATTERS * sum(squares.values())
    mattering = {i for i, square in squares.items() if square >= least > 0}

    def groups() -> Iterator[tuple[float, frozenset[int], float]]:
        # Sorted, as sums and ties must not hang on the order of a set.
        for layer in sorted(mattering - kept):
            near = mattering.intersection(graph.neighbours[layer]) - kept
            for other in (layer, *sorted(near)):
                group = frozenset((layer, other))
                cost_ms = -graph.gain(kept, kept | group)
                if cost_ms <= left_ms:
                    saved = sum(squares[i] for i in sorted(group))
                    yield saved / max(cost_ms, _FREE_MS), group, cost_ms

    while best := max(groups(), key=lambda entry: (entry[0], sorted(entry[1])), default=None):
        _, group, cost_ms = best
        kept, left_ms = kept | group, left_ms - max(0.0, cost_ms)
    return Plan.of(kept)


class _Annealing:
    """One walk from one plan; `spent` is the sum of the squared errors of its low layers."""

    def __init__(
        self, graph: CostGraph, squares: Sequence[float], budget: float, start: Plan, seed: int
    ) -> None:
        self.graph = graph
        self.squares = squares
        self.budget = budget
        self.rng = random.Random(seed)
        self.neighbours = [
            [i for i in near if not math.isinf(squares[i])] for near in graph.neighbours
        ]
        self.kept = set(start.kept) | {i for i, e in enumerate(squares) if math.isinf(e)}
        self.spent = sum(e for i, e in enumerate(squares) if i not in self.kept)
        # A start that the law does not allow keeps the worst layers, too, until it does.
        for layer in sorted(range(len(squares)), key=lambda i: (-squares[i], i)):
            if self.spent <= budget:
                break
            if layer not in self.kept:
                self.kept.add(layer)
                self.spent = sum(e for i, e in enumerate(squares) if i not in self.kept)

    def run(self) -> frozenset[int]:
        """Return the layers kept by the cheapest plan of the walk."""
        free = [i for i, e in enumerate(self.squares) if not math.isinf(e)]
        if not free:
            return frozenset(self.kept)
        mean = sum(abs(self._change((layer,))) for layer in free) / len(free)
        count = min(MOST_MOVES, max(LEAST_MOVES, MOVES * len(free)))
        cost, best, least = 0.0, frozenset(self.kept), 0.0
        # A cold walk stays where it is for long, and a small graph has few groups.
        changes: dict[tuple[int, ...], float] = {}
        for move in range(count):
            look_at_clock()
            group = self._group(self.rng.choice(free))
            if self.rng.random() < SWAPS:
                group = tuple({*group} ^ {self.rng.choice(free)})
            spent = self.spent + self._added(group)
            if spent > self.budget:
                continue
            if group not in changes:
                changes[group] = self._change(group)
            change = changes[group]
            heat = mean * HOT * (COLD / HOT) ** (move / count)
            if change > 0 and self.rng.random() >= math.exp(-change / heat if heat else -math.inf):
                continue
            self.kept ^= set(group)
            changes.clear()
            self.spent = spent
            cost += change
            # A difference of rounding is no gain.
            if cost < least - 1e-12 * mean:
                best, least = frozenset(self.kept), cost
        return best

    def _group(self, first: int) -> tuple[int, ...]:
        """Return one layer, or connected layers around it of the same type as it."""
        most = self.rng.choice((1, 1, 2, 4, 8, LARGEST_GROUP))
        high = first in self.kept
        # The pieces of one kernel, so that it becomes whole.
        fusions = self.graph.fusions_of.get(first, ())
        if fusions and self.rng.random() < WHOLE:
            pieces = self.rng.choice(fusions).layers
            return tuple(
                i for i in pieces if (i in self.kept) == high and not math.isinf(self.squares[i])
            )
        group, waiting = [first], [first]
        while waiting and len(group) < most:
            layer = self.rng.choice(waiting)
            waiting.remove(layer)
            for near in self.neighbours[layer]:
                if (near in self.kept) == high and near not in group and len(group) < most:
                    group.append(near)
                    waiting.append(near)
        return tuple(group)

    def _added(self, group: Sequence[int]) -> float:
        """Return what changing these layers adds to the sum of squares."""
        return sum(self.squares[i] if i in self.kept else -self.squares[i] for i in group)

    def _change(self, group: Sequence[int]) -> float:
        """Return what changing the type of these layers adds to the cost."""
        graph, kept = self.graph, self.kept
        layers = sum(-graph.high_ms[i] if i in kept else graph.high_ms[i] for i in group)
        values = [graph.values[i] for i in {i for layer in group for i in graph.around[layer]}]
        broken = {fusion for layer in group for fusion in graph.fusions_of.get(layer, ())}
        casts = [value.is_cast(kept) for value in values]
        costs = [fusion.cost(kept) for fusion in broken]
        # Changed in place and back: a copy of all that is kept takes longer than the rest.
        kept.symmetric_difference_update(group)
        change = (
            layers
            + sum(
                v.cast_ms * (v.is_cast(kept) - cast) for v, cast in zip(values, casts, strict=True)
            )
            + sum(sorted(f.cost(kept) - cost for f, cost in zip(broken, costs, strict=True)))
        )
        kept.symmetric_difference_update(group)
        return change
