"""The least time of any plan by a cost graph: a minimum cut between high and low.

V. Kolmogorov and R. Zabih, "What energy functions can be minimized via graph cuts?", IEEE TPAMI 26
(2004). It asks nothing of errors, so no plan that holds takes less.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.plan_costs import CostGraph

# Share of the time that sums in another order may differ by, and more.
_ROUNDING = 1e-9


def least_time(graph: CostGraph) -> float:
    """Return the time, in the graph's milliseconds, that no plan is below by `CostGraph.time`.

    It is that of some plan, to within rounding, unless a fused kernel is slower than its pieces.
    """
    cut = _Cut(graph.size)
    for layer, high_ms in enumerate(graph.high_ms):
        cut.pay_where_any_high((layer,), max(0.0, high_ms))
        cut.save_where_all_high((layer,), max(0.0, -high_ms))
    for value in graph.values:
        ends = {*value.readers, *(() if value.producer is None else (value.producer,))}
        is_input = value.producer is None
        ends_high = value.read_high or (is_input and not value.made_low)
        if value.read_low or (is_input and value.made_low):
            # Between two ends that no plan changes it is cast in every plan.
            cut.least += value.cast_ms * ends_high
            cut.pay_where_any_high(ends, value.cast_ms * (not ends_high))
        elif ends_high:
            cut.pay_unless_all_high(ends, value.cast_ms)
        else:
            cut.pay_where_any_high(ends, value.cast_ms)
            cut.save_where_all_high(ends, value.cast_ms)
    for fusion in graph.fusions:
        # What would be gained by breaking a kernel is taken as gained.
        cut.least += min(0.0, fusion.low_ms)
        cut.pay_where_any_high(fusion.layers, max(0.0, fusion.low_ms))
        cut.save_where_all_high(fusion.layers, max(0.0, fusion.high_ms))
    time = graph.base_ms + cut.least + cut.flow()
    return time - _ROUNDING * abs(time)


class _Cut:
    """A network whose cuts are plans: layers on the side of `HIGH` are high.

    What all cuts pay, or save, is in `least`.
    """

    def __init__(self, layers: int) -> None:
        self._high, self._low = layers, layers + 1
        self._edges: list[list[int]] = [[] for _ in range(layers + 2)]
        self._ends: list[int] = []
        self._room: list[float] = []
        self.least = 0.0

    def pay_where_any_high(self, layers: Iterable[int], cost: float) -> None:
        """Add a cost of plans that keep one of these layers, or more."""
        if cost > 0:
            some = self._node()
            self._edge(some, self._low, cost)
            for layer in layers:
                self._edge(layer, some, math.inf)

    def pay_unless_all_high(self, layers: Iterable[int], cost: float) -> None:
        """Add a cost of plans that do not keep all of these layers."""
        if cost > 0:
            every = self._node()
            self._edge(self._high, every, cost)
            for layer in layers:
                self._edge(every, layer, math.inf)

    def save_where_all_high(self, layers: Iterable[int], gain: float) -> None:
        """Take a gain off the cost of plans that keep all of these layers."""
        self.least -= gain
        self.pay_unless_all_high(layers, gain)

    def flow(self) -> float:
        """Return the cost of the cheapest cut: as much as flows from one side to the other.

        By all shortest ways at a time (Y. Dinitz, 1970).
        """
        flow = 0.0
        while self._low in (steps := self._steps()):
            untried = [deque(edges) for edges in self._edges]
            while path := self._path(steps, untried):
                look_at_clock()
                least = min(self._room[edge] for edge in path)
                flow += least
                for edge in path:
                    self._room[edge] -= least
                    self._room[edge ^ 1] += least
        return flow

    def _node(self) -> int:
        look_at_clock()
        self._edges.append([])
        return len(self._edges) - 1

    def _edge(self, start: int, end: int, room: float) -> None:
        """Add an edge, and one back without room; their numbers differ in the last bit."""
        for tail, head, space in ((start, end, room), (end, start, 0.0)):
            self._edges[tail].append(len(self._ends))
            self._ends.append(head)
            self._room.append(space)

    def _steps(self) -> dict[int, int]:
        """Return how many edges with room lead from the high side to each node, at least."""
        steps = {self._high: 0}
        waiting = deque(steps)
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                if self._room[edge] > 0 and self._ends[edge] not in steps:
                    steps[self._ends[edge]] = steps[node] + 1
                    waiting.append(self._ends[edge])
        return steps

    def _path(self, steps: Mapping[int, int], untried: Sequence[deque[int]]) -> list[int]:
        """Return the edges of a shortest way that has room, [] where none is left.

        Edges that lead nowhere are taken out of those `untried` at each node.
        """
        path, node = list[int](), self._high
        while node != self._low:
            if not untried[node]:
                if not path:
                    return []
                # Edges lie in pairs, each beside its reverse.
                node = self._ends[path.pop() ^ 1]
                untried[node].popleft()
                continue
            edge = untried[node][0]
            end = self._ends[edge]
            if self._room[edge] > 0 and steps.get(end) == steps[node] + 1:
                path.append(edge)
                node = end
            else:
                untried[node].popleft()
        return path
