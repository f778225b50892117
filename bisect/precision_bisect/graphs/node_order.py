"""Nodes in an order in which each reads only what earlier ones write.

ONNX asks for it, ONNX Runtime and TensorRT open files without it, and whatever walks a graph here
relies on it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import refill, subgraphs


def sort_nodes(proto: onnx.ModelProto) -> None:
    """Put the nodes of the graph, of inner graphs and of functions into order, in place.

    What is in order stays as it is. Else the order depends on what the nodes read, not on where
    they stand in the file: permutations of a model give the same one. Raises ModelError for nodes
    that wait for each other.
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
            makers.setdefault(name, place)
    sources = [[makers[name] for name in names if name in makers] for names in reads]
    if any(source >= place for place, some in enumerate(sources) for source in some):
        last = [makers[name] for name in ends if name in makers]
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
