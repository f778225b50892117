"""Engine layers laid over the graph: which nodes each one holds, and what its name tells.

Sets of nodes are bit masks (Python's integers): paths between thousands of nodes are found by a
few operations on them.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import onnx

from precision_bisect.backends.inspection.engine_layers import (
    BELOW_FP32,
    EngineLayer,
    EngineTensor,
    imitates_border,
    onnx_nodes,
)
from precision_bisect.graphs.graph import HALF_TYPES, captured
from precision_bisect.graphs.types import infer_elem_types

CAST = "Cast"
_FLOATS = BELOW_FP32 | {"fp32"}
_TRUNCATED = "Etc"
# Kinds of engine layers that may hold any number of operations of any type.
_FUSED_KINDS = frozenset(("kgen", "fusion", "runtime_fusion", "runtime_function", "Myelin"))
# Beginnings of the names of such layers, whatever their kind.
_FUSED_NAMES = ("{ForeignNode[", "__myl_", "_gemm_mha")
# The kind whose names leave out operations: `__myl_Fc_myl2_7` is a MatMul, an Add and a GELU.
_UNNAMED_KIND = "fusion"
_MOVING_KINDS = frozenset(
    (
        *("Reformat", "NoOp", "Signal", "Wait", "Shuffle", "ShapeHostToDevice", "shape_call"),
        "Constant",
    )
)
MOVES = (CAST, "Conc", "Move", "Repl", "Resh", "Slic", "Tran")
# Operations that rules ask for and that have more than three letters.
_WORDS = (*MOVES, "Corr", "Deco", "Mean", "Sqrt")
_LONG, _SHORT = 4, 3
"""Letters that names cut operations to; many builds of TensorRT 10 cut to three (NVIDIA/TensorRT
issue 4397)."""
_RESIZES = frozenset(("Resize", "Upsample"))
_OPERATION = re.compile(r"[A-Z][a-z0-9]*")
_KERNEL_NAME = re.compile(r"__myl_([A-Z]\w*?)(?:_myl\d+_\d+)?")
_COUNTS = frozenset(
    (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
)
_FLOAT_TYPES = frozenset((onnx.TensorProto.FLOAT, *HALF_TYPES))


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
        producers = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self._sources = [
            {producers[name] for name in _reads(node) & producers.keys()} for node in self.nodes
        ]
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
            elif not constant and read != written and read | written <= _FLOAT_TYPES:
                self.casts.add(number)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An engine layer and the numbers of the graph's nodes that it holds.

    `span` has the nodes that its metadata lists and those on a path between two of them, unless
    another layer lists these: metadata leaves out a Cast or an operator now and then. `loose` are
    the casts next to these that no layer lists; they may be here or in a neighbour.

    `operations` are those that a generated kernel's name lists, in their order, four letters each
    (`__myl_ReluCastAdd_myl0_0`), () for every other layer. If the name may cut them to three
    letters (`short`), operations that rules ask for are written out, unless something else in the
    kernel begins alike.
    """

    layer: EngineLayer
    span: frozenset[int]
    loose: frozenset[int]
    operations: tuple[str, ...]
    short: bool = False

    @property
    def fused(self) -> bool:
        """Whether it may compute in several types; other layers compute in one."""
        return self.layer.kind in _FUSED_KINDS or self.layer.name.startswith(_FUSED_NAMES)

    @property
    def opaque(self) -> bool:
        """Whether it is fused and nothing says what happens inside."""
        return self.fused and not self.operations

    @property
    def moves_only(self) -> bool:
        """Whether it only moves or converts values, whatever nodes it lists."""
        listed = bool(self.operations) and not self.unlisted
        return self.layer.kind in _MOVING_KINDS or (
            listed and set(MOVES).issuperset(self.operations)
        )

    @property
    def unlisted(self) -> bool:
        """Whether it is of a kind whose names leave out operations."""
        return self.layer.kind == _UNNAMED_KIND

    @property
    def truncated(self) -> bool:
        """Whether it may do more than the operations that its name lists."""
        return _TRUNCATED in self.operations or self.unlisted

    @property
    def converts_nothing(self) -> bool:
        """Whether it is certain that no conversion happens inside."""
        return not self.opaque and not self.truncated and CAST not in self.operations

    @property
    def weights(self) -> list[EngineTensor]:
        """Its constants that can be weights; scalars scale results in any kernel."""
        return [
            c
            for c in self.layer.constants
            if c.elements != 1 and c.dtype in _FLOATS and not c.scales
        ]

    def word(self, op_type: str) -> str:
        """Return what the name calls an operator that is one operation."""
        return op_type[: _SHORT if self.short else _LONG]

    def shows(self, op_type: str, others: Iterable[str]) -> bool:
        """Tell whether the name lists an operation for every operator of this type among others.

        Operators that begin alike cannot be told apart, nor can those that begin like a move.
        """
        word = self.word(op_type)
        if self.short and any(move.startswith(word) for move in MOVES):
            return False
        alike = max(1, sum(self.word(other) == word for other in others))
        return sum(self.word(operation) == word for operation in self.operations) >= alike


def float_types(tensors: Sequence[EngineTensor]) -> frozenset[str]:
    """Return the types among the tensors that floats can have, with "" for one that is unknown."""
    return frozenset(t.dtype for t in tensors if t.dtype in _FLOATS or not t.dtype)


def find_kernels(graph: GraphNodes, layers: Sequence[EngineLayer]) -> list[Kernel]:
    """Return the engine layers that hold nodes of the graph.

    Names that imitate the syntax of metadata cannot be told from others, and are ignored.
    """
    # A layer's name is the model's to choose, and may hold what reads as another layer.
    doubtful = {
        part
        for name in graph.index
        if imitates_border(name)
        for part in onnx_nodes(f"[ONNX Layer: {name}]")
    }
    listed = [
        {graph.index[n] for n in layer.nodes if n in graph.index and n not in doubtful}
        for layer in layers
    ]
    claimed = {number for numbers in listed for number in numbers}
    unlisted = graph.behind(claimed)
    return [
        _kernel(graph, layer, numbers, claimed, unlisted)
        for layer, numbers in zip(layers, listed, strict=True)
        if numbers
    ]


def unlisted_kernel(layer: EngineLayer) -> Kernel:
    """Return an engine layer that lists no node of the graph."""
    return Kernel(layer=layer, span=frozenset(), loose=frozenset(), operations=_operations(layer))


def _kernel(
    graph: GraphNodes, layer: EngineLayer, listed: Set[int], claimed: Set[int], unlisted: int
) -> Kernel:
    span = listed | graph.between(listed, unlisted)
    borders = {cast for number in span for cast in graph.borders(number)}
    operations = _operations(layer)
    # One operation of four letters shows that the name does not cut to three.
    short = bool(operations) and all(len(operation) <= _SHORT for operation in operations)
    if short:
        resizes = any(graph.nodes[number].op_type in _RESIZES for number in span)
        operations = tuple(_written_out(operation, resizes) for operation in operations)
    return Kernel(
        layer=layer,
        span=frozenset(span),
        loose=frozenset(borders - claimed),
        operations=operations,
        short=short,
    )


def _operations(layer: EngineLayer) -> tuple[str, ...]:
    """Return what the name of a generated kernel lists; other layers carry a node's name."""
    match = _KERNEL_NAME.fullmatch(layer.name) if layer.kind in _FUSED_KINDS else None
    return tuple(_OPERATION.findall(match.group(1))) if match else ()


def _written_out(operation: str, resizes: bool) -> str:
    """Return the operation that these three letters are cut from, or else the letters.

    `Res` is Reshape or Resize: it is Reshape if the kernel holds nothing that resizes.
    """
    if len(operation) < _SHORT or (resizes and operation == "Res"):
        return operation
    return next((word for word in _WORDS if word.startswith(operation)), operation)
