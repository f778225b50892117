"""From a model to what keeping its layers high costs, in estimated milliseconds.

A kept layer costs its slower kernel, and a Cast for each tensor that crosses between types. So the
cost of a plan is no sum over layers: neighbours share Casts. A plan that keeps some operators of
those that one kernel computes breaks that kernel into its pieces.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from math import prod
from statistics import median

import onnx

from precision_bisect.graphs.graph import captured
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import Shape, tensor_shapes
from precision_bisect.layer_table import Exclusion
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.plan_costs import CostGraph, Fusion, Value
from precision_bisect.search.speed.roofline import (
    CONVOLUTIONS,
    HIGH_BYTES,
    KERNEL_MS,
    LAYOUT_KERNELS,
    LOW_BYTES,
    cast_ms,
    macs,
    operator_ms,
    product_ms,
)


def cost_graph(
    model: Model,
    inputs: Mapping[str, Shape],
    kernel_ms: float = KERNEL_MS,
    *,
    fused: Iterable[Sequence[str]] = (),
    tf32: bool = False,
) -> CostGraph:
    """Return the costs of a model whose inputs have these shapes, by name.

    `kernel_ms` is the least time of any kernel, in milliseconds. A tensor of unknown shape counts
    as one of the model's median size. What is no candidate is left out: it takes the same time in
    every plan. `fused` are names of nodes that one kernel computes where all have one type. With
    `tf32` FP32 products run on tensor cores.
    """
    shapes = tensor_shapes(model, inputs)
    sizes = {name: float(prod(shape)) for name, shape in shapes.items()}
    usual = median(sizes.values()) if sizes else 1.0
    numbers = {str(layer.name): i for i, layer in enumerate(model.table.candidates)}
    floats = {name for name, kind in model.elem_types.items() if kind == onnx.TensorProto.FLOAT}
    nodes = {node.name: node for node in model.proto.graph.node if node.name in numbers}

    def time_ms(names: Sequence[str], moved: Iterable[str], *, high: bool) -> float:
        look_at_clock()
        elements = sum(sizes.get(name, usual) for name in moved if name in floats)
        products = sum(product_ms(nodes[name], shapes, high=high, tf32=tf32) for name in names)
        low_convolutions = 0 if high else sum(nodes[n].op_type in CONVOLUTIONS for n in names)
        kernels = 1 + LAYOUT_KERNELS * low_convolutions
        return kernels * kernel_ms + operator_ms(products, elements, high=high)

    low, high = (
        {
            name: time_ms([name], (*node.input, *node.output), high=high)
            for name, node in nodes.items()
        }
        for high in (False, True)
    )
    fusions = [
        Fusion(
            layers=tuple(numbers[name] for name in group),
            low_ms=sum(low[name] for name in group) - time_ms(group, ends, high=False),
            high_ms=sum(high[name] for name in group) - time_ms(group, ends, high=True),
        )
        for group, ends in _fusible(model, nodes, fused)
    ]
    values = _values(model, numbers, floats)
    return CostGraph(
        [high[name] - low[name] for name in numbers],
        [
            Value(
                producer=source.producer,
                readers=tuple(sorted(source.readers)),
                read_high=source.read_high,
                cast_ms=cast_ms(sizes.get(name, usual), kernel_ms),
                made_low=name in model.interface.inputs,
                read_low=source.read_low,
            )
            for name, source in values.items()
            # A tensor that nobody in question reads needs no Cast whatever the plan.
            if source.readers
            or (source.producer is not None and (source.read_high or source.read_low))
        ],
        fusions,
        sum(low.values()) - sum(fusion.low_ms for fusion in fusions),
    )


def weight_graph(model: Model) -> CostGraph:
    """Return the bytes of weights that plans store, in place of milliseconds.

    A weight that layers of both types read is stored in both: its Cast is folded. What operators
    that only move values read, as a table, is stored once, low if all that read it in the end are.
    """
    graph = model.proto.graph
    numbers = {str(layer.name): i for i, layer in enumerate(model.table.candidates)}
    exclusions = {str(layer.name): layer.exclusion for layer in model.table.layers}
    sizes = {
        tensor.name: float(prod(tensor.dims))
        for tensor in graph.initializer
        if model.elem_types.get(tensor.name) == onnx.TensorProto.FLOAT
    }
    readers: dict[str, set[int]] = {name: set() for name in sizes}
    holding = {name: {name} for name in sizes}
    moved, read_high = set[str](), set[str]()
    for node in graph.node:
        weights = {weight for name in node.input for weight in holding.get(name, ())}
        exclusion = exclusions.get(node.name)
        # A weight under another name, as exporters write shared ones, is that weight.
        renames = exclusion is Exclusion.CONSTANT and node.op_type == "Identity"
        if renames or exclusion is Exclusion.FOLLOWER:
            moved |= set() if renames else weights
            holding.update(dict.fromkeys(node.output, weights))
        elif node.name in numbers:
            for weight in weights:
                readers[weight].add(numbers[node.name])
        elif exclusion is not Exclusion.SHAPE:
            read_high |= weights
        read_high.update(*(holding.get(name, ()) for name in captured(node)))
    read_high.update(*(holding.get(output.name, ()) for output in graph.output))
    low, high = LOW_BYTES, HIGH_BYTES
    base, copies = 0.0, list[Fusion]()
    for name, size in sizes.items():
        layers = tuple(sorted(readers[name]))
        once, pinned = name in moved or not layers, name in read_high or not layers
        base += size * (high if pinned else 0) + size * (0 if pinned and once else low)
        # As a fusion: a plan that keeps some of the layers stores the high copy as well, one that
        # keeps all stores no low one. A table changes its type.
        more = 0 if pinned else high - low if once else high
        less = 0 if once else low
        if more or less:
            copies.append(Fusion(layers=layers, low_ms=more * size, high_ms=less * size))
    return CostGraph([0.0] * len(numbers), [], copies, base)


def _fusible(
    model: Model, nodes: Mapping[str, onnx.NodeProto], fused: Iterable[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the candidates of each group, if several, and the tensors that their kernel moves."""
    graph = model.proto.graph
    readers: dict[str, set[str]] = {output.name: {""} for output in graph.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.name)
    for group in fused:
        names = [name for name in group if name in nodes]
        if len(names) < 2:
            continue
        written = {output for name in names for output in nodes[name].output}
        read = {tensor for name in names for tensor in nodes[name].input}
        outside = {name for name in written if readers.get(name, set()).difference(names)}
        yield names, sorted((read - written) | outside)


NODE_WORK = 1e5
"""Multiply-adds that a node counts as, for what calling it takes: about 10 us on a core."""


def inference_work(model: Model, inputs: Mapping[str, Shape]) -> float:
    """Return the multiply-adds of an inference on inputs of these shapes, `NODE_WORK` a node."""
    shapes = tensor_shapes(model, inputs)
    return sum(NODE_WORK + macs(node, shapes) for node in model.proto.graph.node)


class _Source:
    """A tensor that some layer or an input makes, with all its readers, through followers too."""

    def __init__(self, producer: int | None) -> None:
        self.producer = producer
        self.readers: set[int] = set()
        self.read_high = self.read_low = False


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
    # Graph outputs have the type of the interface whatever the plan.
    for output in graph.output:
        low = output.name in model.interface.outputs
        for name in moved.get(output.name, ()):
            sources[name].read_low |= low
            sources[name].read_high |= not low
    return sources
