"""Edges between layers that run in one 16-bit type or in FP32: one switch for both ends.

The value that runs from a layer to a reader is rounded to the low type and back if the layer or
the reader runs low. A value with several readers is rounded once, as its layer stores it; a reader
rounds it only if that layer runs high and the reader low.

Readers that are no candidates (followers, control flow, outputs) see the value as the layer stored
it. Rounding twice is rounding once, so rounding again after a follower changes nothing.
"""

import onnx

from precision_bisect.backends.emulation.readers import rounded_for, stored_names
from precision_bisect.backends.emulation.snippets import (
    NO_LAYER,
    SHORT_PREFIX,
    Condition,
    Flags,
    identity,
    switch_node,
)
from precision_bisect.model.load import Model
from precision_bisect.model.lowtypes import LowType
from precision_bisect.model.round_trips import round_trip

_FLOAT = onnx.TensorProto.FLOAT


class SharedEdges:
    """Writes the edges of a graph into `nodes`, layer by layer in network order."""

    def __init__(
        self, model: Model, low: LowType, flags: Flags, nodes: list[onnx.NodeProto]
    ) -> None:
        self._low = low
        self._flags = flags
        self._nodes = nodes
        self._types = model.elem_types
        self._index = {str(name): i for i, name in enumerate(model.table.names)}
        self._producer = {
            output: self._index[node.name]
            for node in model.proto.graph.node
            if node.name in self._index
            for output in node.output
            if self._types.get(output) == _FLOAT
        }
        self._raw = {name: f"{SHORT_PREFIX}raw/{i}" for i, name in enumerate(self._producer)}
        self._stored = stored_names(model)
        self._rounded_for = {name: self._index[end] for name, end in rounded_for(model).items()}

    def raw(self, name: str) -> str:
        """Return the name of a layer's value before it is stored; other names as they are."""
        return self._raw.get(name, name)

    def read(self, name: str, node: onnx.NodeProto, position: int) -> str:
        """Return the name under which a layer reads `name`, rounded as the flags say."""
        del position
        if self._types.get(name) != _FLOAT:
            return name
        layer = self._index[node.name]
        stored = name in self._stored or name not in self._producer
        # Its layer's switch already covers this reader.
        if stored and self._rounded_for.get(name) == layer:
            return name
        source = self._producer.get(name, NO_LAYER)
        edge = f"{SHORT_PREFIX}edge/{len(self._flags.conditions)}"
        if name in self._stored:
            self._edge(name, edge, (layer, NO_LAYER, source))
        else:
            self._edge(self.raw(name), edge, (layer, source, NO_LAYER))
        return edge

    def store(self, node: onnx.NodeProto) -> None:
        """Round what a layer computes to what it stores."""
        layer = self._index[node.name]
        for name in node.output:
            if name in self._producer and name in self._stored:
                reader = self._rounded_for.get(name, NO_LAYER)
                self._edge(self.raw(name), name, (layer, reader, NO_LAYER))

    def _edge(self, raw: str, out: str, condition: Condition) -> None:
        flag = self._flags.add(condition)
        low, high = f"{flag}/low", f"{flag}/high"
        rounded = round_trip(raw, low, self._low.onnx_type)
        self._nodes.append(
            switch_node(flag, {out: _FLOAT}, (rounded, [low]), (identity(raw, high), [high]))
        )
