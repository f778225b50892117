"""From the kernels of an answer, and of every layer low, to what the kept layers cost.

The unit is the *island*: what has to go low together to save time. Kept layers belong together if
they exchange values, and if one kernel computes both, or would with every layer low. What else
changes with an island is read off the typed graphs with and without it: Casts, and the type of
what moves values. A kernel is there as a whole or not at all, so all that it computes goes with
its first node: low layers that a fusion had taken in are slower because of the island.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Value
from precision_bisect.runs.results.layer_costs import Costs, IslandCost, LayerCost
from precision_bisect.search.speed.kernel_times import KernelTimes

MOST_ISLANDS_WRITTEN = 32
"""Islands for which typed graphs are written, those that take longest; for the others the layers
count alone. A bound: a graph of a thousand nodes takes 50 ms."""


class ProfiledEngine:
    """The kernels of one engine, with their times multiplied by `scale`."""

    def __init__(self, times: KernelTimes, scale: float, candidates: frozenset[str]) -> None:
        self.total_ms = times.total_ms * scale
        self.kernels = [(kernel.ms * scale, kernel.nodes) for kernel in times.kernels]
        self._candidates = candidates

    @cached_property
    def by_layer(self) -> Mapping[str, float]:
        """What each candidate takes; a kernel of several counts in equal parts."""
        ms_by_layer: dict[str, float] = defaultdict(float)
        for ms, nodes in self.kernels:
            layers = nodes & self._candidates
            for name in layers:
                ms_by_layer[name] += ms / len(layers)
        return ms_by_layer

    def together(self) -> Iterable[frozenset[str]]:
        """Yield the candidates that each kernel computes."""
        return (nodes & self._candidates for _, nodes in self.kernels)

    def within(self, nodes: frozenset[str]) -> float:
        """Return what the kernels take that compute nothing else than these nodes."""
        return sum((ms for ms, of_kernel in self.kernels if of_kernel and of_kernel <= nodes), 0.0)

    def grown(self, nodes: frozenset[str]) -> frozenset[str]:
        """Return the nodes with all others of the kernels that compute one of them."""
        return nodes.union(
            *(of_kernel for _, of_kernel in self.kernels if not of_kernel.isdisjoint(nodes))
        )


class Graphs:
    """What the typed graphs of plans have: nodes, and which of them are high."""

    def __init__(self, writer: TypedWriter, plan: Plan) -> None:
        self._writer = writer
        self._plan = plan
        self._before = self._of(plan)

    def changed(self, dropped: Iterable[int]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the nodes that are not there without these layers, and those that change at all.

        What is added counts, too.
        """
        after = self._of(self._plan.without(dropped))
        (nodes, high), (later, still) = self._before, after
        return nodes - later, (nodes ^ later) | (high ^ still)

    def _of(self, plan: Plan) -> tuple[frozenset[str], frozenset[str]]:
        nodes = self._writer.write(plan, guard_islands=False).proto.graph.node
        return frozenset(node.name for node in nodes), frozenset(self._writer.high_nodes(plan))


def island_costs(
    writer: TypedWriter,
    graph: CostGraph,
    plan: Plan,
    times: tuple[KernelTimes, KernelTimes],
    latency: float | None,
) -> Costs:
    """Return what a plan's layers cost, by the `times` of the plan and of every layer low.

    `graph` tells which candidates exchange values. The plan's `latency` in milliseconds scales the
    times of both, where it is known: kernels that run one by one add up to more. Both have one
    scale, as they are profiled one after the other, and latencies at other times of the run.
    """
    names, total = writer.model.table.names, times[0].total_ms
    scale = latency / total if latency and total else 1.0
    answer, low = (ProfiledEngine(profile, scale, frozenset(names)) for profile in times)
    kept, graphs = [names[index] for index in plan.indices], Graphs(writer, plan)
    parts = _parts(graph, names, plan, [*answer.together(), *low.together()])
    taking = {part: sum(answer.by_layer.get(names[i], 0.0) for i in part) for part in parts}
    islands = []
    for place, part in enumerate(sorted(parts, key=lambda part: (-taking[part], part))):
        layers = [names[index] for index in part]
        gone, changed = (
            graphs.changed(part)
            # Each takes a typed graph to be written; the dearest come first.
            if place < MOST_ISLANDS_WRITTEN
            else (frozenset[str](), frozenset[str](layers))
        )
        nodes = _closed(changed, (answer, low))
        islands.append(
            IslandCost(
                layers=layers,
                ms=taking[part],
                casts_ms=answer.within(gone),
                saves_ms=answer.within(nodes) - low.within(nodes),
            )
        )
    return Costs(
        method=times[0].method,
        total_ms=answer.total_ms,
        low_ms=low.total_ms,
        other_ms=sum((ms for ms, nodes in answer.kernels if not nodes), 0.0),
        profiled_ms=total,
        layers=[
            LayerCost(
                layer=name, ms=answer.by_layer.get(name, 0.0), low_ms=low.by_layer.get(name, 0.0)
            )
            for name in kept
        ],
        islands=sorted(islands, key=lambda island: -island.saves_ms),
    )


def _closed(nodes: frozenset[str], engines: Collection[ProfiledEngine]) -> frozenset[str]:
    """Return the nodes with all that some kernel of the engines computes together with them."""
    size = 0
    while len(nodes) > size:
        size = len(nodes)
        for engine in engines:
            nodes = engine.grown(nodes)
    return nodes


def _parts(
    graph: CostGraph, names: Sequence[LayerName], plan: Plan, together: Iterable[frozenset[str]]
) -> list[tuple[int, ...]]:
    """Return the kept layers in parts that depend on each other for their time."""
    number = {str(name): index for index, name in enumerate(names)}
    groups = [
        *graph.clusters(plan.kept),
        *(tuple(sorted(number[name] for name in cluster)) for cluster in together),
    ]
    # Kernels of the engine hold layers together that share no value in the file.
    linked = CostGraph(
        [0.0] * len(names),
        [
            Value(producer=group[0], readers=group[1:], read_high=False, cast_ms=0.0)
            for group in groups
            if len(group) > 1
        ],
    )
    kept_parts = (plan.kept.intersection(part) for part in linked.clusters(range(len(names))))
    return [tuple(sorted(part)) for part in kept_parts if part]
