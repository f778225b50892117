"""Engine layers laid over the graph: which nodes each one holds, and what its name tells."""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from precision_bisect.backends.inspection.engine_layers import (
    BELOW_FP32,
    EngineLayer,
    EngineTensor,
    imitates_border,
    onnx_nodes,
)
from precision_bisect.backends.inspection.graph_nodes import GraphNodes

CAST = "Cast"
_FLOATS = BELOW_FP32 | {"fp32"}
_TRUNCATED = "Etc"
_FUSED_KINDS = frozenset(("kgen", "fusion", "runtime_fusion", "runtime_function", "Myelin"))
"""Kinds of engine layers that may hold any number of operations of any type."""
_FUSED_NAMES = ("{ForeignNode[", "__myl_", "_gemm_mha")
"""Beginnings of the names of such layers, whatever their kind."""
_UNNAMED_KIND = "fusion"
"""The kind whose names leave out operations: `__myl_Fc_myl2_7` is a MatMul, an Add and a GELU."""
_MOVING_KINDS = frozenset(
    (
        *("Reformat", "NoOp", "Signal", "Wait", "Shuffle", "ShapeHostToDevice", "shape_call"),
        "Constant",
    )
)
MOVES = (CAST, "Conc", "Move", "Repl", "Resh", "Slic", "Tran")
_WORDS = (*MOVES, "Corr", "Deco", "Mean", "Sqrt")
"""Operations that rules ask for and that have more than three letters."""
_LONG, _SHORT = 4, 3
"""Letters that names cut operations to; many builds of TensorRT 10 cut to three (NVIDIA/TensorRT
issue 4397)."""
_RESIZES = frozenset(("Resize", "Upsample"))
_OPERATION = re.compile(r"[A-Z][a-z0-9]*")
_KERNEL_NAME = re.compile(r"__myl_([A-Z]\w*?)(?:_myl\d+_\d+)?")


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
    short = bool(operations) and all(len(each) <= _SHORT for each in operations)
    if short:
        resizes = any(graph.nodes[number].op_type in _RESIZES for number in span)
        operations = tuple(_written_out(each, resizes) for each in operations)
    return Kernel(
        layer=layer,
        span=frozenset(span),
        loose=frozenset(borders - claimed),
        operations=operations,
        short=short,
    )


def _operations(layer: EngineLayer) -> tuple[str, ...]:
    """Return what the name of a generated kernel lists; other layers carry a node's name."""
    found = _KERNEL_NAME.fullmatch(layer.name) if layer.kind in _FUSED_KINDS else None
    return tuple(_OPERATION.findall(found.group(1))) if found else ()


def _written_out(operation: str, resizes: bool) -> str:
    """Return the operation that these three letters are cut from, or else the letters.

    `Res` is Reshape or Resize: it is Reshape if the kernel holds nothing that resizes.
    """
    if len(operation) < _SHORT or (resizes and operation == "Res"):
        return operation
    return next((word for word in _WORDS if word.startswith(operation)), operation)
