"""Edges between layers: a value is rounded as it is stored, and again as it is read.

If both forms of a layer round alike, the rounding is a fixed part of the graph, not a switch. A
reader rounds only values that may be stored in another type than its own.

Between one 16-bit type and FP32 one switch serves both ends, as rounding twice is rounding once: a
value is rounded if its layer or its reader runs low. A value with several readers is rounded once,
as its layer stores it; a reader rounds it only if that layer runs high and the reader low. Readers
that are no candidates (followers, control flow, outputs) see the value as the layer stored it.
"""

from collections import Counter
from collections.abc import Mapping

import onnx

from precision_bisect.backends.emulation.snippets import (
    NO_LAYER,
    SHORT_PREFIX,
    Condition,
    Flags,
    Quantizers,
    identity,
    switch_node,
)
from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.graph import captured, settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.quantization.calibration import OPERANDS
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.types import round_trip
from precision_bisect.layer_table import LayerForms, LayerName
from precision_bisect.precisions import Form, HighName, Pair, PrecisionName

_FLOAT = onnx.TensorProto.FLOAT
_EXACT: frozenset[HighName] = frozenset(("fp32",))

Steps = tuple[PrecisionName, ...]
"""The types that a value is rounded to, one after the other."""


class Edges:
    """Writes the edges of a graph into `nodes`, layer by layer in network order.

    `forms` are those of the layers that a plan of the `pair` decides on, or that are fixed.
    `interior` tensors are not stored while the kernel of that number is whole.
    """

    def __init__(
        self,
        model: Model,
        pair: Pair,
        forms: Mapping[LayerName, LayerForms],
        scales: Scales,
        flags: Flags,
        nodes: list[onnx.NodeProto],
        interior: Mapping[str, int],
    ) -> None:
        self.quantizers = Quantizers()
        self._types = model.elem_types
        self._index = {name: i for i, name in enumerate(model.table.names)}
        self._forms = forms
        self._scales = scales
        self._flags = flags
        self._nodes = nodes
        self._interior = interior
        self._held = _held(model, forms)
        makers = {
            output: LayerName(node.name)
            for node in model.proto.graph.node
            if LayerName(node.name) in forms
            for output in node.output
            if self._types.get(output) == _FLOAT
        }
        self._raw = {name: f"{SHORT_PREFIX}raw/{i}" for i, name in enumerate(makers)}
        self._edges: dict[tuple[str, Condition, Steps, Steps], str] = {}
        self._maker: dict[str, int] = {}
        self._stored: set[str] = set(makers)
        self._rounded_for: dict[str, int] = {}
        # Other pairs store every tensor: only FP32 against a low float leaves values unrounded.
        if pair.high == "fp32" and pair.low in LOW_TYPES:
            decided = {name: layer for name, layer in makers.items() if layer in self._index}
            self._maker = {name: self._index[layer] for name, layer in decided.items()}
            self._stored -= decided.keys() - stored_names(model)
            readers = rounded_for(model).items()
            self._rounded_for = {name: self._index[LayerName(end)] for name, end in readers}

    def raw(self, name: str) -> str:
        """Return the name of a layer's value before it is stored; other names as they are."""
        return self._raw.get(name, name)

    def read(self, name: str, node: onnx.NodeProto, position: int) -> str:
        """Return the name under which a layer reads `name`, rounded as its form says."""
        if self._types.get(name) != _FLOAT:
            return name
        forms = self._forms[LayerName(node.name)]
        types = self._held.get(name, _EXACT)
        low = _read_as(forms.low, types, operand=position in OPERANDS)
        high = _read_as(forms.high, types, operand=position in OPERANDS)
        if not low and not high:
            return name
        layer = NO_LAYER if low == high else self._index[LayerName(node.name)]
        stored = name in self._stored or name not in self._maker
        # Its layer's switch already covers this reader.
        if stored and layer != NO_LAYER and self._rounded_for.get(name) == layer:
            return name
        maker = NO_LAYER if layer == NO_LAYER else self._maker.get(name, NO_LAYER)
        whole = self._interior.get(name, NO_LAYER)
        others = (NO_LAYER, maker) if stored else (maker, NO_LAYER)
        condition = (layer, *others, whole)
        # One edge for all layers that read it alike in both forms.
        key = (name, condition, low, high)
        if key not in self._edges:
            self._edges[key] = f"{SHORT_PREFIX}edge/{len(self._edges)}"
            source = name if stored else self.raw(name)
            self._edge(name, source, self._edges[key], condition, (low, high))
        return self._edges[key]

    def store(self, node: onnx.NodeProto) -> None:
        """Round what a layer computes to what it stores."""
        forms = self._forms[LayerName(node.name)]
        low, high = ((f.stored,) if f.stored != "fp32" else () for f in (forms.low, forms.high))
        layer = NO_LAYER if low == high else self._index[LayerName(node.name)]
        for name in node.output:
            if name in self._stored:
                reader = NO_LAYER if layer == NO_LAYER else self._rounded_for.get(name, NO_LAYER)
                condition = (layer, reader, NO_LAYER, self._interior.get(name, NO_LAYER))
                self._edge(name, self.raw(name), name, condition, (low, high))

    def _edge(
        self, name: str, source: str, out: str, condition: Condition, steps: tuple[Steps, Steps]
    ) -> None:
        """Round tensor `name` from `source` to `out`, by the first steps where the flag is on."""
        if condition[0] == NO_LAYER:
            self._nodes.extend(self._round(name, source, out, steps[0]))
            return
        flag = self._flags.add(condition)
        low, high = (
            (self._round(name, source, end, some), [end])
            for end, some in zip((f"{flag}/low", f"{flag}/high"), steps, strict=True)
        )
        self._nodes.append(switch_node(flag, {out: _FLOAT}, low, high))

    def _round(self, name: str, source: str, out: str, steps: Steps) -> list[onnx.NodeProto]:
        """Return the nodes that take the value of tensor `name` from `source` to `out`."""
        if not steps:
            return identity(source, out)
        nodes = []
        for i, step in enumerate(steps):
            end = out if i == len(steps) - 1 else f"{out}/{i}"
            if step in QUANTIZED:
                scale = self._scales.activations[name]
                nodes += self.quantizers.pair(source, end, QUANTIZED[step], scale)
            else:
                nodes += round_trip(source, end, LOW_TYPES[step].onnx_type)
            source = end
        return nodes


def _read_as(form: Form, types: frozenset[HighName], *, operand: bool) -> Steps:
    """Return how a layer of that form rounds an input; `types` has the types it may be stored in.

    Operands are quantized from the type that they are stored in: QuantizeLinear takes every float
    type.
    """
    as_stored: Steps = () if form.stored == "fp32" else (form.stored,)
    if form.quantized and operand:
        return (form.quantized, *as_stored)
    return () if types == {form.stored} else as_stored


def _held(
    model: Model, forms: Mapping[LayerName, LayerForms]
) -> Mapping[str, frozenset[HighName]]:
    """Return the types in which each tensor may be stored; a tensor without an entry is FP32."""
    types_by_tensor: dict[str, frozenset[HighName]] = {}
    for node in model.proto.graph.node:
        layer_forms = forms.get(LayerName(node.name))
        if layer_forms is not None:
            kinds = frozenset((layer_forms.low.stored, layer_forms.high.stored))
        # What only moves values may hold whatever its sources may.
        elif is_follower(node):
            floats = [name for name in node.input if model.elem_types.get(name) == _FLOAT]
            kinds = frozenset[HighName]().union(
                *(types_by_tensor.get(name, _EXACT) for name in floats)
            )
        else:
            continue
        types_by_tensor.update((name, kinds) for name in node.output)
    return types_by_tensor


def stored_names(model: Model) -> set[str]:
    """Return the tensors that the switched graph holds as stored, under their own name.

    They are those that a node reads which is no candidate, and those that several layers read: a
    low layer's value is then rounded once, not for each reader.
    """
    graph = model.proto.graph
    candidates = set(model.table.names)
    names = {output.name for output in graph.output}
    reads: Counter[str] = Counter()
    for node in graph.node:
        names |= captured(node)
        if node.name in candidates:
            names.update(node.input[i] for i in settings_of(node))
            reads.update(set(node.input))
        else:
            names.update(node.input)
    return names | {name for name, times in reads.items() if times > 1}


def rounded_for(model: Model) -> dict[str, str]:
    """Return the tensors that only one layer reads, in part through followers, with that layer.

    Rounding commutes with moving. So such a value is rounded for its reader before the followers,
    where the layer that computes it is rounded anyway, and the reader takes it as it comes. This
    holds for outputs of layers that followers read, and for what these followers make of nothing
    else.
    """
    graph = model.proto.graph
    candidates = set(model.table.names)
    sole = _sole_readers(model)
    rounded: dict[str, str] = {}
    for node in graph.node:
        floats = [n for n in node.input if model.elem_types.get(n) == onnx.TensorProto.FLOAT]
        moved = is_follower(node) and bool(floats) and all(n in rounded for n in floats)
        if moved or node.name in candidates:
            rounded.update((name, sole[name]) for name in node.output if name in sole)
    return rounded


def _sole_readers(model: Model) -> dict[str, str]:
    """Return the tensors whose values reach only one layer, with that layer."""
    graph = model.proto.graph
    candidates = set(model.table.names)
    elsewhere = {output.name for output in graph.output}
    readers: dict[str, set[str]] = {}
    # Backwards: the readers of a follower's output are known before the follower.
    for node in reversed(graph.node):
        elsewhere |= captured(node)
        if node.name in candidates:
            ends = {node.name}
            elsewhere.update(node.input[i] for i in settings_of(node))
        else:
            follows = is_follower(node) and not elsewhere.intersection(node.output)
            ends = {end for name in node.output for end in readers.get(name, ()) if follows}
            elsewhere.update(() if follows else node.input)
        for name in node.input:
            readers.setdefault(name, set()).update(ends)
    return {
        name: next(iter(ends))
        for name, ends in readers.items()
        if len(ends) == 1 and name not in elsewhere
    }
