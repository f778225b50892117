"""What every export writes down: a model, the layers of it that stay high, and the low type."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precision_bisect.engine_settings import EngineSettings
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.layer_table import Exclusion, Layer, LayerName
from precision_bisect.model.graph import all_graphs
from precision_bisect.model.load import Model
from precision_bisect.options import LowName
from precision_bisect.plan import Plan

_NAMELESS_INSIDE = frozenset(("Attention", "GRU", "GlobalLpPool", "LSTM", "Mod", "RNN"))
"""Operators that TensorRT's parser builds partly of layers with neither name nor metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A plan to write down.

    `kept` are names of candidates of `model`. What the model's table calls pinned stays FP32 too:
    the plan was judged with those layers in FP32.
    """

    model: Model
    kept: Sequence[LayerName]
    low: LowName
    settings: EngineSettings

    @property
    def plan(self) -> Plan:
        """The plan that keeps `kept`."""
        wanted = frozenset(self.kept)
        names = self.model.table.names
        return Plan.of(i for i, name in enumerate(names) if name in wanted)

    @property
    def high_layers(self) -> tuple[Layer, ...]:
        """The layers that stay FP32, kept and pinned, in network order."""
        wanted = frozenset(self.kept)
        return tuple(
            layer
            for layer in self.model.table.layers
            if layer.name in wanted or layer.exclusion is Exclusion.PINNED
        )

    def other_names(self) -> Iterator[str]:
        """Yield every other name that a TensorRT layer of this model may have.

        TensorRT calls layers after nodes, those inside subgraphs too, and after initializers.
        """
        high = frozenset(layer.name for layer in self.high_layers)
        yield from (layer.name for layer in self.model.table.layers if layer.name not in high)
        for graph in all_graphs(self.model.proto.graph):
            yield from (tensor.name for tensor in graph.initializer)
            if graph is not self.model.proto.graph:
                yield from (node.name for node in graph.node if node.name)


def named_layers(export: Export) -> tuple[Layer, ...]:
    """Return the layers that stay FP32, in network order.

    Raises NotWritable where there is none, and where the model's file does not carry the name of
    one of them exactly once, so that other tools call the node something else.
    """
    if not export.high_layers:
        raise NotWritable("no layer is kept")
    for layer in export.high_layers:
        if not layer.named_in_model:
            raise NotWritable(
                f"layer {layer.name!r} has no name of its own in the model, so TensorRT's name "
                "for it depends on its version; give every node a unique name and run again"
            )
    return export.high_layers


def layers_in_tensorrt(export: Export) -> tuple[Layer, ...]:
    """Return the layers that stay FP32, which TensorRT can be told of by their names.

    Raises NotWritable as `named_layers` does, and for operators of which TensorRT's parser builds
    layers without a name (seen with TensorRT-RTX 1.7.1), and for names that it cuts short.
    """
    for layer in named_layers(export):
        if "\0" in layer.name:
            raise NotWritable(f"TensorRT cuts the name {layer.name!r} short")
        if layer.op_type in _NAMELESS_INSIDE:
            raise NotWritable(
                f"TensorRT builds {layer.name!r} ({layer.op_type}) of layers without a name"
            )
    return export.high_layers
