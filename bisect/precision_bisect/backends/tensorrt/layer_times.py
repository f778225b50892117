"""How long each layer of a TensorRT engine takes, and which layers of the model it computes.

TensorRT reports times by the names of its own layers. What the inspector says of these tells which
nodes of the graph they hold.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import onnx

from precision_bisect.backends.timing import WARM_UP_RUNS, measure, middle
from precision_bisect.inspection.engine_kernels import Kernel, find_kernels, unlisted_kernel
from precision_bisect.inspection.engine_layers import EngineLayer
from precision_bisect.inspection.graph_nodes import GraphNodes
from precision_bisect.inspection.rules import computes
from precision_bisect.layer_table import LayerName, LayerTable
from precision_bisect.protocols import Sample
from precision_bisect.speed.kernel_times import TimedKernel

_FLOATS = frozenset(("fp32", "fp16", "bf16"))
_JOINED = " + "
"""Between the names of the nodes that a layer's own name lists."""


def layer_times(
    module: ModuleType, runner: Any, feed: Sample, held: list[Any]
) -> Mapping[str, float]:
    """Return the milliseconds of each engine layer in a run of Polygraphy's active runner.

    `held` must live as long as the context, which points to the profiler in it.
    """
    runs: list[dict[str, float]] = []

    class Profiler(module.IProfiler):  # type: ignore[misc, name-defined]
        """Notes what the context reports, run by run."""

        def __init__(self) -> None:
            module.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """Note the time of a layer; one in a loop is reported again and again."""
            runs[-1][layer_name] = runs[-1].get(layer_name, 0.0) + ms

    def run() -> None:
        runs.append({})
        runner.infer(feed)

    held.append(Profiler())
    runner.context.profiler = held[-1]
    measure(run)
    timed: dict[str, list[float]] = defaultdict(list)
    for told in runs[WARM_UP_RUNS:]:
        for name, ms in told.items():
            timed[name].append(ms)
    return {name: middle(times) for name, times in timed.items()}


def timed_kernels(
    took: Mapping[str, float],
    layers: Sequence[EngineLayer],
    proto: onnx.ModelProto,
    table: LayerTable,
) -> list[TimedKernel]:
    """Return an engine's layers as kernels; `proto` is the graph that it was built from."""
    graph = GraphNodes(proto)
    holding = {kernel.layer.name: kernel for kernel in find_kernels(graph, layers)}
    told = {layer.name: layer for layer in layers}
    found = []
    for name, ms in took.items():
        layer = told.get(name, EngineLayer(name=name))
        found.append(_timed(ms, holding.get(name, unlisted_kernel(layer)), graph, table))
    return found


def _timed(ms: float, kernel: Kernel, graph: GraphNodes, table: LayerTable) -> TimedKernel:
    layer, span = kernel.layer, kernel.span
    named = {graph.nodes[i].name for i in span if computes(graph, kernel, i)}
    if not span:
        named = set(layer.name.split(_JOINED))
    computed = named.intersection(table.names)
    read, written = ({t.dtype for t in each} & _FLOATS for each in (layer.inputs, layer.outputs))
    converts = bool(read and written) and read != written
    casts = not computed and (converts or (bool(span) and span <= graph.casts))
    return TimedKernel(
        ms=ms,
        layers=frozenset(map(LayerName, computed)),
        casts=casts,
        moves=not computed and not casts,
        reads=tuple(each.name for each in layer.inputs),
        writes=tuple(each.name for each in layer.outputs),
    )
