"""How nodes are connected: who reads whom, and ways to the outputs."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property

import onnx

from precision_bisect.graphs.graph import captured
from precision_bisect.graphs.load import Model


class Wiring:
    """The main graph of a model as nodes by name."""

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        self.nodes = {node.name: node for node in graph.node}
        self.outputs = [output.name for output in graph.output]
        self.maker = {out: node.name for node in graph.node for out in node.output if out}

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for name in dict.fromkeys((*node.input, *sorted(captured(node)))):
                found.setdefault(name, []).append(node.name)
        return found

    def readers(self, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the names of the nodes that read what a node makes."""
        for name in node.output:
            yield from self._readers.get(name, ())

    def way(self, start: str, output: str, through: frozenset[str] | None = None) -> list[str]:
        """Return the nodes of a shortest way from a node to the maker of an output, both included.

        With `through` the way keeps to these nodes. Returns [] where there is none.
        """
        end = self.maker.get(output, "")
        came = self._reached(start, through)
        return _back(came, end) if end in came else []

    def carried(
        self, start: str, output: str, brought: Callable[[onnx.NodeProto, str], float]
    ) -> list[str]:
        """Return the nodes of the way on which an error came from one node to an output.

        It is followed back from the output, at each node to the operand that brings in most of the
        error; `brought` tells how much, for a node and a tensor's name. Returns [] where there is
        no way.
        """
        reached = self.behind(start)
        way = [self.maker.get(output, "")]
        if way[0] not in reached:
            return []
        while way[-1] != start:
            node = self.nodes[way[-1]]
            read = [*node.input, *sorted(captured(node))]
            came = [name for name in read if self.maker.get(name) in reached]
            way.append(self.maker[max(came, key=lambda name: brought(node, name))])
        return way[::-1]

    def behind(self, start: str) -> frozenset[str]:
        """Return the node and all nodes that its values reach."""
        return frozenset(self._reached(start, None))

    def farthest(self, start: str, through: frozenset[str]) -> list[str]:
        """Return the nodes of the shortest way to the node that is farthest off, through these."""
        came = self._reached(start, through)
        # Breadth-first: the last one reached is the farthest.
        return _back(came, next(reversed(came)))

    def _reached(self, start: str, through: frozenset[str] | None) -> dict[str, str]:
        """Return what each node was first reached from, nearest first; breadth-first search."""
        came: dict[str, str] = {start: ""}
        pending = deque([start])
        while pending:
            name = pending.popleft()
            for reader in self.readers(self.nodes[name]):
                if reader not in came and (through is None or reader in through):
                    came[reader] = name
                    pending.append(reader)
        return came


def _back(came: dict[str, str], end: str) -> list[str]:
    way = [end]
    while came[way[-1]]:
        way.append(came[way[-1]])
    return way[::-1]
