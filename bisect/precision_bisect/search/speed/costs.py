"""From a model to what keeping its layers high costs, in estimated milliseconds.

A kept layer costs its slower kernel, and a Cast for each tensor that crosses between types. So the
cost of a plan is no sum over layers: neighbours share Casts.
"""

from collections.abc import Mapping, Set
from itertools import chain
from math import prod
from statistics import median

import onnx

from precision_bisect.graphs.graph import captured
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import Shape, tensor_shapes
from precision_bisect.layer_table import Exclusion
from precision_bisect.plan_costs import CostGraph, Value
from precision_bisect.search.speed.roofline import KERNEL_MS, cast_ms, extra_ms, low_ms, macs


def cost_graph(
    model: Model, inputs: Mapping[str, Shape], kernel_ms: float = KERNEL_MS
) -> CostGraph:
    """Return the costs of a model whose inputs have these shapes, by name.

    `kernel_ms` is the least time of any kernel, in milliseconds. A tensor of unknown shape counts
    as one of the model's median size.
    """
    shapes = tensor_shapes(model, inputs)
    sizes = {name: float(prod(shape)) for name, shape in shapes.items()}
    usual = median(sizes.values()) if sizes else 1.0
    numbers = {str(layer.name): i for i, layer in enumerate(model.table.candidates)}
    floats = {name for name, kind in model.elem_types.items() if kind == onnx.TensorProto.FLOAT}
    high_ms = [0.0] * len(numbers)
    for node in model.proto.graph.node:
        if node.name in numbers:
            moved = sum(sizes.get(n, usual) for n in (*node.input, *node.output) if n in floats)
            high_ms[numbers[node.name]] = extra_ms(macs(node, shapes), moved)
    values = _values(model, numbers, floats)
    return CostGraph(
        high_ms,
        [
            Value(
                producer=source.producer,
                readers=tuple(sorted(source.readers)),
                read_high=source.read_high,
                cast_ms=cast_ms(sizes.get(name, usual), kernel_ms),
            )
            for name, source in values.items()
            # A tensor that nobody in question reads needs no Cast whatever the plan.
            if source.readers or (source.producer is not None and source.read_high)
        ],
    )


NODE_WORK = 1e5
"""Multiply-adds that a node counts as, for what calling it takes: about 10 us on a core."""


def inference_work(model: Model, inputs: Mapping[str, Shape]) -> float:
    """Return the multiply-adds of an inference on inputs of these shapes, `NODE_WORK` a node."""
    shapes = tensor_shapes(model, inputs)
    return sum(NODE_WORK + macs(node, shapes) for node in model.proto.graph.node)


def base_ms(model: Model, inputs: Mapping[str, Shape], kernel_ms: float = KERNEL_MS) -> float:
    """Return the estimated time with every layer low, in milliseconds; arguments as `cost_graph`.

    What is no candidate is left out: it takes the same time in every plan.
    """
    shapes = tensor_shapes(model, inputs)
    sizes = {name: float(prod(shape)) for name, shape in shapes.items()}
    usual = median(sizes.values()) if sizes else 1.0
    names = {str(layer.name) for layer in model.table.candidates}
    floats = {name for name, kind in model.elem_types.items() if kind == onnx.TensorProto.FLOAT}
    return sum(
        kernel_ms
        + low_ms(
            macs(node, shapes),
            sum(sizes.get(n, usual) for n in (*node.input, *node.output) if n in floats),
        )
        for node in model.proto.graph.node
        if node.name in names
    )


class _Source:
    """A tensor that some layer or an input makes, with all its readers, through followers too."""

    def __init__(self, producer: int | None) -> None:
        self.producer = producer
        self.readers: set[int] = set()
        self.read_high = False


def _values(model: Model, numbers: Mapping[str, int], floats: Set[str]) -> dict[str, _Source]:
    """Return every float tensor that is computed and not merely moved, by name.

    A follower passes its inputs on to its readers; a Concat passes all of them on.
    """
    graph = model.proto.graph
    exclusions = {str(layer.name): layer.exclusion for layer in model.table.layers}
    sources = {value.name: _Source(None) for value in graph.input if value.name in floats}
    moved = {name: [name] for name in sources}
    for node in graph.node:
        if exclusions.get(node.name) is Exclusion.CONSTANT:
            continue
        read = (*node.input, *sorted(captured(node)))
        # Through what only moves them.
        came = list(dict.fromkeys(chain.from_iterable(moved.get(name, ()) for name in read)))
        if exclusions.get(node.name) is Exclusion.FOLLOWER:
            moved.update({name: came for name in node.output if name in floats})
            continue
        number = numbers.get(node.name)
        for name in came:
            if number is None:
                # Shape arithmetic looks at no value, so it needs no type.
                sources[name].read_high |= exclusions.get(node.name) is not Exclusion.SHAPE
            else:
                sources[name].readers.add(number)
        for name in node.output:
            if name in floats:
                sources[name], moved[name] = _Source(number), [name]
    # Graph outputs are FP32 whatever the plan.
    for output in graph.output:
        for name in moved.get(output.name, ()):
            sources[name].read_high = True
    return sources
