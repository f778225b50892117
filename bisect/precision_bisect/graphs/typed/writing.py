"""One assignment written into one graph, node by node."""

from collections.abc import Sequence

import onnx

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.names import Names
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.added import PREFIX, Added
from precision_bisect.graphs.typed.islands import islands
from precision_bisect.graphs.typed.layout import Layout, Placement, Quantized
from precision_bisect.graphs.typed.older_parsers import spell_out
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.weights import drop_unused
from precision_bisect.layer_table import Exclusion, LayerName
from precision_bisect.precisions import HighName


class Writing:
    """Writes one assignment, given by its placement; use once."""

    def __init__(
        self, model: Model, scales: Scales, layout: Layout, names: Names, placement: Placement
    ) -> None:
        self._model = model
        self._layout = layout
        self._names = names
        self._placement = placement
        self._added = Added(model, layout.constants, scales, names)
        self._nodes = self._added.nodes

    def write(self, guard_islands: bool) -> TypedGraph:
        """Return the typed graph."""
        constants = self._layout.constants.names
        guards = islands(self._model, self._placement, constants) if guard_islands else {}
        for node in self._model.proto.graph.node:
            self._write(node, guards.get(LayerName(node.name), ()))
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model.proto)
        graph = proto.graph
        del graph.node[:]
        graph.node.extend(self._without_unread_constants())
        graph.initializer.extend(self._added.initializers.values())
        drop_unused(graph, {})
        self._retype(graph)
        stubs = {tensor.name for tensor in graph.initializer}
        return TypedGraph(
            proto=proto,
            weights={name: w for name, w in self._added.weights.items() if name in stubs},
            guarded=tuple(guards),
        )

    def _write(self, node: onnx.NodeProto, guards: Sequence[int]) -> None:
        """Append the node, with what it needs before it, and what its readers need after it."""
        low = self._placement.nodes.get(node.name)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        # All inputs before the node itself: reading may append Casts.
        for i, name in enumerate(node.input):
            copy.input[i] = self._read(node, i, name)
        if low is not None:
            floats = node.name not in self._placement.quantized
            spell_out(self._added, node, low.kind, copy, floats)
        for i in guards:
            copy.input[i] = self._added.guard(f"{node.name}/{i}", copy.input[i])
        self._nodes.append(copy)
        for i, name in enumerate(node.output):
            if low is not None and i in low.form.outputs:
                copy.output[i] = self._stored(name)
                # Subgraphs and callers read this tensor by its name, in FP32.
                if name in self._layout.public:
                    self._added.append_cast(name, copy.output[i], name, None)

    def _read(self, node: onnx.NodeProto, i: int, name: str) -> str:
        """Return the name under which a node reads its input `i`."""
        low = self._placement.nodes.get(node.name)
        quantized = self._placement.quantized.get(node.name)
        if quantized is not None and i in quantized.form.weights:
            return self._added.dequantized_weight(name, quantized.kind, quantized.stored)
        if quantized is not None and i in quantized.form.activations:
            return self._added.dequantized_activation(
                name, self._to_quantize(name, quantized), quantized.kind, quantized.stored
            )
        if low is not None and i in low.form.inputs:
            return self._in_low(name, low.kind)
        if self._layout.reads_any_type(node):
            return self._stored(name)
        return self._in_fp32(name)

    def _to_quantize(self, name: str, quantized: Quantized) -> tuple[str, HighName]:
        """Return the name of a tensor in a type that holds its scale exactly, with that type."""
        kind = self._placement.tensors.get(name)
        if kind is not None and kind.name == quantized.stored:
            return self._stored(name), kind.name
        return self._in_fp32(name), "fp32"

    def _stored(self, name: str) -> str:
        """Return the name of a tensor in the type in which it is stored."""
        renamed = name in self._placement.tensors and name in self._layout.public
        return self._names(f"{PREFIX}/low/{name}") if renamed else name

    def _in_fp32(self, name: str) -> str:
        """Return the name of a tensor in its own type: FP32 if it could be low."""
        if name not in self._placement.tensors or name in self._layout.public:
            return name
        return self._added.cast(name, name, None)

    def _in_low(self, name: str, low: LowType) -> str:
        """Return the name of a float tensor in a 16-bit type."""
        stored = self._placement.tensors.get(name)
        if stored is low:
            return self._stored(name)
        constant = self._added.low_constant(name, low) if stored is None else None
        return self._added.cast(name, self._stored(name), low) if constant is None else constant

    def _without_unread_constants(self) -> list[onnx.NodeProto]:
        """Return the nodes without constants that nobody reads now that low copies exist."""
        constant = {
            layer.name
            for layer in self._model.table.layers
            if layer.exclusion is Exclusion.CONSTANT
        }
        read = set(self._layout.public)
        kept = []
        # Backwards, as a constant may be read only by another constant that goes.
        for node in reversed(self._nodes):
            if node.name not in constant or read.intersection(node.output):
                kept.append(node)
                read.update(node.input)
        return kept[::-1]

    def _retype(self, graph: onnx.GraphProto) -> None:
        """Update the types of tensors that the file declares; forget tensors that are gone."""
        made = {name for node in graph.node for name in node.output}
        told = []
        for value in graph.value_info:
            kind = self._placement.tensors.get(value.name)
            if kind is not None and value.name not in self._layout.public:
                value.type.tensor_type.elem_type = kind.onnx_type
            if value.name in made:
                told.append(value)
        del graph.value_info[:]
        graph.value_info.extend(told)
