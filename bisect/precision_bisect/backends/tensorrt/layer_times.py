"""What TensorRT says of a loaded engine's layers, how long each takes, and which of ours it holds.

TensorRT reports times by the names of its own layers. What the inspector says of these tells which
nodes of the graph they hold.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.inspection.engine_kernels import GraphNodes, find_kernels
from precision_bisect.backends.inspection.engine_layers import EngineLayer
from precision_bisect.backends.inspection.rules import computes
from precision_bisect.backends.timing import WARM_UP_RUNS, measured_latency, middle
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.verification import EngineFacts
from precision_bisect.search.speed.kernel_times import KernelTimes, TimedKernel

_FLOATS = frozenset(("fp32", "fp16", "bf16"))
# Between the names of the nodes that a layer's own name lists.
_JOINED = " + "
# What tells a profile's values: the second in TensorRT 8.6.
_PROFILE_VALUES = ("get_tensor_profile_values", "get_profile_shape_input")

# Kinds of layers that compute nothing.
_REFORMATS = ("Reformat", "Cast")
# How the names of such layers begin where their kind says nothing.
_CONVERTS = re.compile(r"Reformatting CopyNode|__myl_(?:Cast|Move)+(?:_|\Z)")
_CASTS = re.compile(r"__myl_[A-Za-z]*Cast")


def information(trt: ModuleType, engine: Any, context: Any, keep_alive: list[NDArray[Any]]) -> str:
    """Return the inspector's JSON on the engine.

    If shapes are dynamic, an inspector gives neither shapes nor types unless it has a context with
    shapes, and with values for inputs that give a shape by these. What `context` already has
    stays; others become what the engine is tuned for. `keep_alive` must live as long as the
    context, which points to the values in it.
    """
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for name in names:
        if engine.get_tensor_mode(name) != trt.TensorIOMode.INPUT:
            continue
        if -1 in tuple(context.get_tensor_shape(name)):
            _, best, _ = engine.get_tensor_profile_shape(name, 0)
            context.set_input_shape(name, best)
        if engine.is_shape_inference_io(name) and not context.get_tensor_address(name):
            keep_alive.append(_best_values(engine, name))
            context.set_tensor_address(name, keep_alive[-1].ctypes.data)
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _best_values(engine: Any, name: str) -> NDArray[Any]:
    """Return the values that the engine is tuned for of an input that gives a shape by them."""
    ask = next(getattr(engine, method) for method in _PROFILE_VALUES if hasattr(engine, method))
    # By position: the names of these arguments are the wrong way round in the bindings.
    _, best, _ = ask(0, name)
    kind = engine.get_tensor_dtype(name).name.lower()
    return np.array(best, "float32" if kind == "float" else kind)


def layer_times(
    module: ModuleType, runner: Any, feed: Sample, keep_alive: list[Any]
) -> Mapping[str, float]:
    """Return the milliseconds of each engine layer in a run of Polygraphy's active runner.

    `keep_alive` must live as long as the context, which points to the profiler in it.
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

    keep_alive.append(Profiler())
    runner.context.profiler = keep_alive[-1]
    measured_latency(run)
    timed: dict[str, list[float]] = defaultdict(list)
    for layer_ms in runs[WARM_UP_RUNS:]:
        for name, ms in layer_ms.items():
            timed[name].append(ms)
    return {name: middle(times) for name, times in timed.items()}


def timed_layers(
    took: Mapping[str, float],
    layers: Sequence[EngineLayer],
    proto: onnx.ModelProto,
    kept: Set[str],
) -> KernelTimes:
    """Return the times of an engine's layers as those of kernels.

    `proto` is the graph that it was built from, `kept` are the layers that its plan keeps.
    """
    graph = GraphNodes(proto)
    holding = {
        kernel.layer.name: frozenset(
            graph.nodes[i].name for i in kernel.span if computes(graph, kernel, i)
        )
        for kernel in find_kernels(graph, layers)
    }
    layers_by_name = {layer.name: layer for layer in layers}
    beside = _beside(layers, holding, kept)
    kernels = []
    for name, ms in took.items():
        # A fused layer that the inspector does not tell has the names of its nodes joined.
        nodes = holding.get(name) or frozenset(graph.index.keys() & name.split(_JOINED))
        if not nodes and name in layers_by_name and _converts(layers_by_name[name]):
            nodes = beside(layers_by_name[name])
        kernels.append(TimedKernel(ms=ms, nodes=nodes))
    return KernelTimes("tensorrt_profiler", kernels)


def _beside(
    layers: Sequence[EngineLayer], holding: Mapping[str, frozenset[str]], kept: Set[str]
) -> Callable[[EngineLayer], frozenset[str]]:
    """Return what tells the kept layers whose values a layer reads, or that read its own."""
    ends: dict[str, set[str]] = defaultdict(set)
    for layer in layers:
        for tensor in (*layer.inputs, *layer.outputs):
            ends[tensor.name] |= holding.get(layer.name, frozenset()) & kept
    return lambda layer: frozenset[str]().union(
        *(ends[tensor.name] for tensor in (*layer.inputs, *layer.outputs))
    )


def _converts(layer: EngineLayer) -> bool:
    """Tell whether an engine layer is seen to change the type of floats."""
    read, written = (
        {t.dtype for t in tensors} & _FLOATS for tensors in (layer.inputs, layer.outputs)
    )
    return bool(read and written) and read != written


def facts_of(size: int, layers: Sequence[EngineLayer]) -> EngineFacts | None:
    """Return the facts of an engine of so many bytes; None where it tells no layers."""
    if not layers:
        return None
    others = [
        layer
        for layer in layers
        if layer.kind not in _REFORMATS and not _CONVERTS.match(layer.name)
    ]
    return EngineFacts(
        size=size,
        layers=len(layers),
        conversions=len(layers) - len(others),
        casting=sum(_CASTS.match(layer.name) is not None for layer in others),
    )
