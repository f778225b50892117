"""Engine layers laid over the graph: which nodes each one holds, and what its name tells."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from precision_bisect.inspection.engine_layers import (
    LOW,
    EngineLayer,
    EngineTensor,
    imitates_border,
    onnx_nodes,
)
from precision_bisect.inspection.graph_nodes import GraphNodes

CAST = "Cast"
_FLOATS = LOW | {"fp32"}
_TRUNCATED = "Etc"
_FUSED_KINDS = frozenset(("kgen", "runtime_fusion", "runtime_function", "Myelin"))
"""Kinds of layers that may hold any number of operations of any type."""
_MOVING_KINDS = frozenset(
    ("Reformat", "NoOp", "Signal", "Wait", "Shuffle", "ShapeHostToDevice", "shape_call")
)
_MOVES = frozenset((CAST, "Conc", "Move", "Repl", "Resh", "Slic", "Tran"))
_OPERATION = re.compile(r"[A-Z][a-z0-9]*")
_KERNEL_NAME = re.compile(r"__myl_([A-Z]\w*?)(?:_myl\d+_\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An engine layer and the numbers of the graph's nodes that it holds.

    `span` are the nodes that its metadata lists and those on a path between two of these, unless
    another layer lists them: metadata leaves out a Cast or an operator now and then. `loose` are
    the casts next to these that no layer lists, so that they may be here or in a neighbour.
    `operations` are the operations that a generated kernel's name lists in their order, four
    letters each (`__myl_ReluCastAdd_myl0_0`), () for every other layer.
    """

    layer: EngineLayer
    span: frozenset[int]
    loose: frozenset[int]
    operations: tuple[str, ...]

    @property
    def fused(self) -> bool:
        """Whether it may compute in several types; other layers compute in one."""
        return self.layer.kind in _FUSED_KINDS or self.layer.name.startswith("{ForeignNode[")

    @property
    def opaque(self) -> bool:
        """Whether it is fused and nothing says what happens inside."""
        return self.fused and not self.operations

    @property
    def moves_only(self) -> bool:
        """Whether it only moves or converts values, whatever nodes it lists."""
        return self.layer.kind in _MOVING_KINDS or (
            bool(self.operations) and _MOVES.issuperset(self.operations)
        )

    @property
    def truncated(self) -> bool:
        """Whether its name is cut off, so that it does more than the operations listed."""
        return _TRUNCATED in self.operations

    @property
    def converts_nothing(self) -> bool:
        """Whether it is certain that no conversion happens inside."""
        return not self.opaque and not self.truncated and CAST not in self.operations

    @property
    def weights(self) -> list[EngineTensor]:
        """Its constants that can be weights; scalars scale results in any kernel."""
        return [c for c in self.layer.constants if c.elements != 1 and c.dtype in _FLOATS]


def float_types(tensors: Sequence[EngineTensor]) -> frozenset[str]:
    """Return the types among the tensors that floats can have, with "" for one that is unknown."""
    return frozenset(t.dtype for t in tensors if t.dtype in _FLOATS or not t.dtype)


def find_kernels(graph: GraphNodes, layers: Sequence[EngineLayer]) -> list[Kernel]:
    """Return the engine layers that hold nodes of the graph.

    Names that imitate the syntax of metadata cannot be told from others and count for nothing.
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


def _kernel(
    graph: GraphNodes, layer: EngineLayer, listed: Set[int], claimed: Set[int], unlisted: int
) -> Kernel:
    span = listed | graph.between(listed, unlisted)
    borders = {cast for number in span for cast in graph.borders(number)}
    return Kernel(
        layer=layer,
        span=frozenset(span),
        loose=frozenset(borders - claimed),
        operations=_operations(layer),
    )


def _operations(layer: EngineLayer) -> tuple[str, ...]:
    """Return what the name of a generated kernel lists; other layers carry a node's name."""
    found = _KERNEL_NAME.fullmatch(layer.name) if layer.kind in _FUSED_KINDS else None
    return tuple(_OPERATION.findall(found.group(1))) if found else ()
