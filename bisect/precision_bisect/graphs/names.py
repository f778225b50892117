"""Names for what is added to a graph, none of which the model uses."""

import threading
from collections.abc import Iterator

import onnx

from precision_bisect.graphs.graph import all_graphs


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
