"""The graph that an engine was built from: its nodes by number, and what the rules ask of them.

Sets of nodes are bit masks (Python's integers): paths between thousands of nodes are found by a
few operations on them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set

import onnx

from precision_bisect.graphs.graph import HALF_TYPES, captured
from precision_bisect.graphs.types import infer_elem_types

_COUNTS = frozenset(
    (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
)
_FLOATS = frozenset((onnx.TensorProto.FLOAT, *HALF_TYPES))


class GraphNodes:
    """The nodes of a graph, numbered in its order.

    `index` gives the number of a node by name. As sets of numbers: `low` nodes read or write a
    16-bit float type; `casts` convert a computed value from one float type to another, and are not
    in `low`; `counting` nodes write integers. `weights` has, for each node, the element counts of
    the initializers that it reads, by name, without scalars.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.nodes = list(proto.graph.node)
        self.index = {node.name: number for number, node in enumerate(self.nodes)}
        self.low: set[int] = set()
        self.casts: set[int] = set()
        self.counting: set[int] = set()
        sizes = {tensor.name: math.prod(tensor.dims) for tensor in proto.graph.initializer}
        self.weights: list[Mapping[str, int]] = [
            {name: sizes[name] for name in node.input if sizes.get(name, 0) > 1}
            for node in self.nodes
        ]
        self._sort(infer_elem_types(proto, {}), set(sizes))
        self._sources = self._find_sources()
        self._before = self._reach()
        self._borders = self._find_borders()

    def borders(self, number: int) -> Set[int]:
        """Return the casts that this node reads from or writes to."""
        return self._borders[number]

    def between(self, ends: Set[int], among: int) -> set[int]:
        """Return the nodes of the bit mask `among` on a path from one of `ends` to another.

        Nodes stand in a graph after those that they depend on.
        """
        before = 0
        for number in ends:
            before |= self._before[number]
        mask, first = _mask_of(ends), min(ends)
        # Masks are cut at the first end: the long run of zeros before it costs time.
        later = (before & among) >> first
        return {i for i in (first + k for k in _members(later)) if self._before[i] & mask}

    def first_of(self, numbers: Set[int]) -> set[int]:
        """Return those that depend on no other of these nodes."""
        mask = _mask_of(numbers)
        return {number for number in numbers if not self._before[number] & mask}

    def last_of(self, numbers: Set[int]) -> set[int]:
        """Return those on which no other of these nodes depends."""
        before = 0
        for number in numbers:
            before |= self._before[number]
        return {number for number in numbers if not before >> number & 1}

    def behind(self, numbers: Set[int]) -> int:
        """Return the bit mask of the other nodes that depend on one of these."""
        mask = _mask_of(numbers)
        return _mask_of(i for i, before in enumerate(self._before) if before & mask) & ~mask

    def _sort(self, types: Mapping[str, int], constants: set[str]) -> None:
        """Fill the sets of numbers. Nodes that read only constants are computed by the builder."""
        for number, node in enumerate(self.nodes):
            read = {types.get(name, 0) for name in node.input if name}
            written = {types.get(name, 0) for name in node.output if name}
            constant = all(name in constants for name in _reads(node))
            if constant:
                constants.update(node.output)
            if written & _COUNTS:
                self.counting.add(number)
            if node.op_type != "Cast":
                if not (read | written).isdisjoint(HALF_TYPES):
                    self.low.add(number)
            elif not constant and read != written and read | written <= _FLOATS:
                self.casts.add(number)

    def _find_sources(self) -> list[set[int]]:
        producers = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        return [
            {producers[name] for name in _reads(node) if name in producers} for node in self.nodes
        ]

    def _reach(self) -> list[int]:
        """Return for each node the bit mask of all nodes that its inputs depend on."""
        masks: list[int] = []
        for number, sources in enumerate(self._sources):
            mask = 0
            for source in sources:
                # A source after its reader (a graph out of order) has no mask yet.
                mask |= 1 << source | (masks[source] if source < number else 0)
            masks.append(mask)
        return masks

    def _find_borders(self) -> dict[int, set[int]]:
        borders: dict[int, set[int]] = defaultdict(set)
        for number, sources in enumerate(self._sources):
            for source in sources:
                if source in self.casts:
                    borders[number].add(source)
                if number in self.casts:
                    borders[source].add(number)
        return borders


def _mask_of(numbers: Iterable[int]) -> int:
    """Return the bit mask of a set of numbers."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def _reads(node: onnx.NodeProto) -> set[str]:
    return {name for name in node.input if name} | captured(node)


def _members(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
