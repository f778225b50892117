"""What several rooms ask of ONNX graphs, and how they change copies of them."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import ModelError
from precision_bisect.machine.stopping import look_at_clock

HALF_TYPES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
RANDOM = frozenset(
    (
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    )
)
"""Standard operators that draw random numbers; Dropout does in training mode."""
NEVER_LOW_INPUTS: dict[str, tuple[int, ...]] = {
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Dropout": (1,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
}
"""Scales and sizes of a Resize, a Dropout's ratio, a OneHot's depth, the ends of a Range."""
_FLOAT = onnx.TensorProto.FLOAT
_ALL_FLOAT: Mapping[str, int] = {}

M = TypeVar("M", onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.FunctionProto)


def copied(message: M) -> M:
    """Return a copy of a model, a graph, a node or a function."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def refill(field: Any, items: Iterable[Any]) -> None:
    """Have a repeated field of a message hold these items alone; they may be its own."""
    entries = list(items)
    del field[:]
    field.extend(entries)


def inferred(proto: onnx.ModelProto, *, data_prop: bool = True) -> onnx.GraphProto:
    """Return the graph with the types and shapes that ONNX infers; as it is where that fails.

    `data_prop` follows the values of shape arithmetic, so more dimensions are known.
    """
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=data_prop).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return proto.graph


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a node's graphs, at any depth."""
    for inner in subgraphs(node):
        for graph in all_graphs(inner):
            yield from graph.node


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the node's attributes, not deeper."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and every graph inside it."""
    look_at_clock()
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph and of the local functions, and those inside them."""
    for outer in (*model.graph.node, *(node for body in model.functions for node in body.node)):
        yield outer
        yield from inner_nodes(outer)


def operators(graph: onnx.GraphProto) -> set[str]:
    """Return the ONNX operators that the graph and every graph inside it use."""
    nodes = (node for inner in all_graphs(graph) for node in inner.node)
    return {node.op_type for node in nodes if node.domain in ("", "ai.onnx")}


def captured(node: onnx.NodeProto) -> set[str]:
    """Return every tensor name that the node's subgraphs mention, outer ones among them."""
    names: set[str] = set()
    for inner in subgraphs(node):
        for graph in all_graphs(inner):
            names.update(output.name for output in graph.output)
            for inner_node in graph.node:
                names.update(name for name in inner_node.input if name)
    return names


def attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """Return the node's attribute of that name, or None."""
    return next((a for a in node.attribute if a.name == name), None)


def constant_of(node: onnx.NodeProto) -> NDArray[Any] | None:
    """Return the numbers of a Constant node; None where it holds none, and for other nodes."""
    if node.op_type != "Constant":
        return None
    for kind in ("value_float", "value_floats", "value_int", "value_ints"):
        if value := attribute(node, kind):
            return np.asarray(onnx.helper.get_attribute_value(value))
    tensor = attribute(node, "value")
    try:
        return None if tensor is None else onnx.numpy_helper.to_array(tensor.t)
    except ValueError:  # bytes that do not fit its shape
        return None


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the model's opset version for a domain, 0 where it imports none."""
    aliases = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return max((o.version for o in model.opset_import if o.domain in aliases), default=0)


def settings_of(node: onnx.NodeProto) -> list[int]:
    """Return the positions of the node's inputs that stay FP32."""
    return [i for i in NEVER_LOW_INPUTS.get(node.op_type, ()) if i < len(node.input)]


class Names:
    """Gives out names: the same for the same wish, and never one that the model uses.

    Several threads may ask.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._taken = set(_all_names(graph))
        self._given: dict[str, str] = {}
        self._giving = threading.Lock()

    def __call__(self, wish: str) -> str:
        """Return `wish`, with underscores appended while the model has that name."""
        with self._giving:
            if wish not in self._given:
                name = wish
                while name in self._taken:
                    name += "_"
                self._taken.add(name)
                self._given[wish] = name
            return self._given[wish]


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of all nodes and tensors of a graph and the graphs in it."""
    for inner in all_graphs(graph):
        yield from (value.name for value in (*inner.input, *inner.output))
        yield from (tensor.name for tensor in inner.initializer)
        for node in inner.node:
            yield node.name
            yield from node.output


def showing(
    proto: onnx.ModelProto, names: Iterable[str], elem_types: Mapping[str, int] = _ALL_FLOAT
) -> onnx.ModelProto:
    """Return a copy of the model with these tensors among its outputs, each once.

    They are FP32 where `elem_types` has no other type for them.
    """
    extended = copied(proto)
    present = {value.name for value in (*extended.graph.output, *extended.graph.input)}
    extended.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, elem_types.get(name) or _FLOAT, None)
        for name in dict.fromkeys(names)
        if name not in present
    )
    return extended


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Call tensors otherwise wherever nodes make or read them, inside subgraphs, too."""
    for inner in all_graphs(graph):
        for node in inner.node:
            for side in (node.input, node.output):
                for i, name in enumerate(side):
                    side[i] = names.get(name, name)
        if inner is not graph:
            for value in inner.output:
                value.name = names.get(value.name, value.name)
    stale = [value for value in graph.value_info if value.name in names]
    for value in stale:
        graph.value_info.remove(value)


def has_function(op_type: str, version: int, domain: str = "") -> bool:
    """Tell whether the ONNX standard defines an operator by other operators."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def sort_nodes(proto: onnx.ModelProto) -> None:
    """Put the nodes of the graph, of inner graphs and of functions into order, in place.

    ONNX asks for it, and whatever walks a graph here relies on it; engines open files without it.
    What is in order stays as it is. Else the order depends on what the nodes read, not on where
    they stand in the file: permutations of a model give the same one. Raises ModelError for nodes
    that wait for each other, and for two that write the same tensor.
    """
    _sort_graph(proto.graph)
    for function in proto.functions:
        _sort(function.node, function.output)


def _sort_graph(graph: onnx.GraphProto) -> list[str]:
    """Put a graph into order; return the outer tensors that it reads."""
    ends = [value.name for value in graph.output]
    names = [*_sort(graph.node, ends), *ends]
    inner = {name for node in graph.node for name in node.output}
    inner.update(value.name for value in graph.input)
    inner.update(tensor.name for tensor in graph.initializer)
    inner.update(tensor.values.name for tensor in graph.sparse_initializer)
    return [name for name in dict.fromkeys(names) if name not in inner]


def _sort(nodes: Any, ends: Iterable[str]) -> list[str]:
    """Put a field of nodes that make `ends` into order; return the tensors that they read."""
    reads = [list(_read_by(node)) for node in nodes]
    makers: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in makers:
                # As torch's exporter writes where an output is given the name of a tensor inside.
                raise ModelError(
                    f"two nodes write a tensor {name!r}",
                    "export the file again, with another name for an output that is called so",
                )
            makers[name] = place
    sources = [[makers[name] for name in names if name in makers] for names in reads]
    # Most files are in order: only others are sorted, so that nothing moves without need.
    if any(source >= place for place, some in enumerate(sources) for source in some):
        last = [makers[name] for name in ends if name in makers]
        # By names, as the order in the file is what is not to be trusted here.
        unread = sorted(range(len(nodes)), key=lambda place: list(nodes[place].output))
        order = list(_sources_first(sources, [*last, *unread]))
        stuck = [nodes[place] for place in sorted({*range(len(nodes))}.difference(order))]
        if stuck:
            raise ModelError(
                f"node {stuck[0].name or stuck[0].op_type!r} waits for a circle of nodes",
                "export the file again: no node may need what comes of its own output",
            )
        refill(nodes, [nodes[place] for place in order])
    return [name for names in reads for name in names]


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node needs; its inner graphs, which need some, are sorted."""
    yield from filter(None, node.input)
    for inner in subgraphs(node):
        yield from _sort_graph(inner)


def _sources_first(sources: Sequence[Sequence[int]], last: Iterable[int]) -> Iterator[int]:
    """Yield the nodes that lead to `last`, each behind its sources; none that is in a circle.

    The walk is depth first, as exporters write: a branch is complete before the next one begins.
    """
    begun: set[int] = set()
    ready: set[int] = set()
    for end in last:
        way = [(end, iter(sources[end]))] * (end not in begun)
        begun.add(end)
        # No recursion: chains are longer than Python's stack is deep.
        while way:
            place, others = way[-1]
            source = next((other for other in others if other not in begun), None)
            if source is not None:
                begun.add(source)
                way.append((source, iter(sources[source])))
                continue
            way.pop()
            if ready.issuperset(sources[place]):
                ready.add(place)
                yield place
