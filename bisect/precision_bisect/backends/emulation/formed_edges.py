"""Edges between layers of any forms: a value is rounded as it is stored, and again as it is read.

If both forms of a layer round alike, the rounding is a fixed part of the graph, not a switch. A
reader rounds only values that may be stored in another type than its own.
"""

from collections.abc import Mapping

import onnx

from precision_bisect.backends.emulation.snippets import (
    NO_LAYER,
    Flags,
    Quantizers,
    identity,
    switch_node,
)
from precision_bisect.layer_table import LayerForms, LayerName
from precision_bisect.model.classify import is_follower
from precision_bisect.model.load import Model
from precision_bisect.model.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.model.round_trips import round_trip
from precision_bisect.precisions import Form, HighName, PrecisionName
from precision_bisect.quantization.quantized_layers import OPERANDS
from precision_bisect.quantization.scales import Scales

_FLOAT = onnx.TensorProto.FLOAT
_EXACT: frozenset[HighName] = frozenset(("fp32",))

Steps = tuple[PrecisionName, ...]
"""The types that a value is rounded to, one after the other."""


class FormedEdges:
    """Writes the edges of a graph into `nodes`, layer by layer in network order."""

    def __init__(
        self,
        model: Model,
        forms: Mapping[LayerName, LayerForms],
        scales: Scales,
        flags: Flags,
        nodes: list[onnx.NodeProto],
    ) -> None:
        self.quantizers = Quantizers()
        self._types = model.elem_types
        self._index = {name: i for i, name in enumerate(model.table.names)}
        self._forms = forms
        self._scales = scales
        self._flags = flags
        self._nodes = nodes
        self._held = _held(model, forms)
        self._raw = {
            output
            for node in model.proto.graph.node
            if LayerName(node.name) in forms
            for output in node.output
            if self._types.get(output) == _FLOAT
        }
        self._edges: dict[tuple[str, int, Steps, Steps], str] = {}

    def raw(self, name: str) -> str:
        """Return the name of a layer's value before it is stored; other names as they are."""
        return f"precision_bisect/raw/{name}" if name in self._raw else name

    def read(self, name: str, node: onnx.NodeProto, position: int) -> str:
        """Return the name under which a layer reads `name`, rounded as its form says."""
        if self._types.get(name) != _FLOAT:
            return name
        forms = self._forms[LayerName(node.name)]
        held = self._held.get(name, _EXACT)
        low = _read_as(forms.low, held, operand=position in OPERANDS)
        high = _read_as(forms.high, held, operand=position in OPERANDS)
        if not low and not high:
            return name
        # One edge for all layers that read it alike in both forms.
        layer = NO_LAYER if low == high else self._index[LayerName(node.name)]
        key = (name, layer, low, high)
        if key not in self._edges:
            self._edges[key] = f"precision_bisect/edge/{len(self._edges)}/{name}"
            self._edge(name, self._edges[key], layer, low, high)
        return self._edges[key]

    def store(self, node: onnx.NodeProto) -> None:
        """Round what a layer computes to what it stores."""
        forms = self._forms[LayerName(node.name)]
        low, high = ((f.stored,) if f.stored != "fp32" else () for f in (forms.low, forms.high))
        layer = NO_LAYER if low == high else self._index[LayerName(node.name)]
        for name in node.output:
            if name in self._raw:
                self._edge(name, name, layer, low, high)

    def _edge(self, name: str, out: str, layer: int, low: Steps, high: Steps) -> None:
        source = self.raw(name) if out == name else name
        if layer == NO_LAYER:
            self._nodes.extend(self._round(name, source, out, low))
            return
        flag = self._flags.add((layer, NO_LAYER, NO_LAYER))
        ends = [f"{flag}/low", f"{flag}/high"]
        branches = [
            (self._round(name, source, end, steps), [end])
            for end, steps in zip(ends, (low, high), strict=True)
        ]
        self._nodes.append(switch_node(flag, {out: _FLOAT}, branches[0], branches[1]))

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


def _read_as(form: Form, held: frozenset[HighName], *, operand: bool) -> Steps:
    """Return how a layer of that form rounds an input; `held` has the types it may be stored in.

    Operands are quantized from the type that they are stored in: QuantizeLinear takes every float
    type.
    """
    as_stored: Steps = () if form.stored == "fp32" else (form.stored,)
    if form.quantized and operand:
        return (form.quantized, *as_stored)
    return () if held == {form.stored} else as_stored


def _held(
    model: Model, forms: Mapping[LayerName, LayerForms]
) -> Mapping[str, frozenset[HighName]]:
    """Return the types in which each tensor may be stored; a tensor without an entry is FP32."""
    held: dict[str, frozenset[HighName]] = {}
    for node in model.proto.graph.node:
        found = forms.get(LayerName(node.name))
        if found is not None:
            kinds = frozenset((found.low.stored, found.high.stored))
        elif is_follower(node):
            floats = [name for name in node.input if model.elem_types.get(name) == _FLOAT]
            kinds = frozenset[HighName]().union(*(held.get(name, _EXACT) for name in floats))
        else:
            continue
        held.update((name, kinds) for name in node.output)
    return held
