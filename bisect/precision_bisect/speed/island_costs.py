"""From the kernels of an answer, and of every layer low, to what the kept layers cost.

The unit is the *island*: what has to go low together to save time. Kept layers belong together if
they exchange values, and if one kernel computes both, or would with every layer low: a fusion
comes back only when all of its layers are low. Low layers that were in such a fusion are slower
because of the island, so their time counts in what it saves.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Value
from precision_bisect.results.layer_costs import Costs, IslandCost, LayerCost
from precision_bisect.speed.kernel_times import KernelTimes, TimedKernel


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels of one engine with the layers that each is for, in milliseconds of latency."""

    shares: Sequence[tuple[float, frozenset[LayerName]]]
    casts: Sequence[tuple[float, frozenset[LayerName]]]
    other_ms: float

    def hanging_on(self, part: Set[LayerName], island: Set[LayerName]) -> float:
        """Return what the kernels of a part take, and the Casts that only its island needs."""
        layers = sum(ms for ms, of in self.shares if of & part)
        return layers + sum(ms for ms, of in self.casts if of <= island)

    def by_layer(self) -> Mapping[LayerName, float]:
        """Return what each layer takes; a kernel of several counts in equal parts."""
        found: dict[LayerName, float] = defaultdict(float)
        for ms, layers in self.shares:
            for name in layers:
                found[name] += ms / len(layers)
        return found


def island_costs(
    graph: CostGraph,
    names: Sequence[LayerName],
    plan: Plan,
    times: tuple[KernelTimes, KernelTimes],
    latencies: tuple[float | None, float | None],
) -> Costs:
    """Return what a plan's layers cost, by the `times` of the plan and of every layer low.

    `graph` tells which candidates exchange values, `names` are theirs. The `latencies` of both in
    milliseconds scale the times, where they are known: single kernels add up to more, or less.
    """
    (answer, low), (latency, low_latency) = times, latencies
    kept = {names[index] for index in plan.indices}
    ours, theirs = _kernels(answer, latency, kept), _kernels(low, low_latency, set(names))
    now, then = ours.by_layer(), theirs.by_layer()
    together = [layers for _, layers in (*ours.shares, *theirs.shares)]
    islands = []
    for part in _parts(graph, names, plan, together):
        island = part & kept
        if island:
            islands.append(
                IslandCost(
                    layers=[name for name in names if name in island],
                    ms=sum(now.get(name, 0.0) for name in island),
                    casts_ms=sum((ms * len(of & island) / len(of) for ms, of in ours.casts), 0.0),
                    saves_ms=ours.hanging_on(part, island) - theirs.hanging_on(part, island),
                )
            )
    return Costs(
        method=answer.method,
        total_ms=latency or answer.total_ms,
        low_ms=low_latency or low.total_ms,
        other_ms=ours.other_ms,
        profiled_ms=answer.total_ms,
        layers=[
            LayerCost(layer=name, ms=now.get(name, 0.0), low_ms=then.get(name, 0.0))
            for name in (names[index] for index in plan.indices)
        ],
        islands=sorted(islands, key=lambda each: -each.saves_ms),
    )


def _kernels(times: KernelTimes, latency: float | None, cast: Set[LayerName]) -> _Kernels:
    """Sort the kernels of an engine; of a Cast those layers beside it count that are `cast`."""
    total = times.total_ms
    scale = latency / total if latency and total else 1.0
    shares, casts, other = [], [], 0.0
    for kernel in times.kernels:
        ms, layers = kernel.ms * scale, _computed(times, kernel)
        beside = times.around(kernel) & cast if kernel.casts else frozenset[LayerName]()
        if layers:
            shares.append((ms, layers))
        elif beside:
            casts.append((ms, beside))
        else:
            other += ms
    return _Kernels(shares, casts, other)


def _computed(times: KernelTimes, kernel: TimedKernel) -> frozenset[LayerName]:
    """Return the layers that a kernel works for; quantization belongs to what reads its result."""
    return times.below(kernel) if kernel.quantizes else kernel.layers


def _parts(
    graph: CostGraph, names: Sequence[LayerName], plan: Plan, together: Iterable[Set[LayerName]]
) -> list[Set[LayerName]]:
    """Return the candidates in parts that depend on each other for their time, each once."""
    number = {name: index for index, name in enumerate(names)}
    groups = [
        *graph.clusters(plan.kept),
        *(tuple(sorted(number[name] for name in each)) for each in together),
    ]
    linked = CostGraph(
        [0.0] * len(names),
        [
            Value(producer=group[0], readers=group[1:], read_high=False, cast_ms=0.0)
            for group in groups
            if len(group) > 1
        ],
    )
    return [{names[index] for index in part} for part in linked.clusters(range(len(names)))]
