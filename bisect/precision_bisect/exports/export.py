"""What every export writes down: a model, the precision of each layer of it, and the scales."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from precision_bisect.backends.tensorrt.profiles import SampleShapes
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.layer_table import Layer, LayerName, assigned
from precision_bisect.model.graph import all_graphs
from precision_bisect.model.load import Model
from precision_bisect.model.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.options import ANSWER
from precision_bisect.plan import Plan
from precision_bisect.precisions import HIGH_NAMES, Pair, PrecisionName
from precision_bisect.quantization.scales import Scales
from precision_bisect.results.result import Diagnosis
from precision_bisect.settings.engine_settings import EngineSettings

_NAMELESS_INSIDE = frozenset(("Attention", "GRU", "GlobalLpPool", "LSTM", "Mod", "RNN"))
"""Operators that TensorRT's parser builds partly of layers with neither name nor metadata."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A plan to write down.

    `kept` are names of candidates of `model`, which stay in the pair's high type. What the model's
    table calls pinned stays high, too, or in the form that it is fixed to: the plan was judged
    with those layers so. `scales` are needed where a layer is INT8 or FP8. The `diagnosis` is told
    by the exports that have a place for it, and so is the `point` of the curve that the plan is.
    `shapes` are those that the samples of the run had, by input; `run` is the fingerprint of it.
    `folder` is where the files will lie, `no_mixed` why there is no typed model, None if there is.
    """

    model: Model
    kept: Sequence[LayerName]
    pair: Pair
    settings: EngineSettings
    scales: Scales = field(default_factory=Scales)
    diagnosis: Sequence[Diagnosis] = ()
    point: str = ANSWER
    shapes: SampleShapes = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    no_mixed: str | None = None

    @property
    def plan(self) -> Plan:
        """The plan that keeps `kept`."""
        wanted = frozenset(self.kept)
        names = self.model.table.names
        return Plan.of(i for i, name in enumerate(names) if name in wanted)

    @cached_property
    def precisions(self) -> Mapping[LayerName, PrecisionName]:
        """The precision of every layer that has one, in network order."""
        return assigned(self.model.table, self.pair, self.plan)

    @cached_property
    def lowest(self) -> PrecisionName:
        """The precision that all layers have which no other export names."""
        return next((p for p in self.precisions.values() if p in QUANTIZED), self.pair.low)

    @cached_property
    def high_layers(self) -> tuple[Layer, ...]:
        """The layers above the lowest precision, kept and pinned, in network order."""
        return tuple(
            layer
            for layer in self.model.table.layers
            if self.precisions.get(layer.name, self.lowest) != self.lowest
        )

    @property
    def below_fp32(self) -> tuple[PrecisionName, ...]:
        """The precisions below FP32 that engines must be allowed to use, the lowest first."""
        wanted = {self.pair.low, self.pair.high, *self.precisions.values()}
        return tuple(name for name in (*QUANTIZED, *LOW_TYPES) if name in wanted)

    @property
    def quantized(self) -> bool:
        """Whether some layer may be INT8 or FP8, so that names alone do not say the plan."""
        return any(name in QUANTIZED for name in self.below_fp32)

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

    def summary(self) -> str:
        """Return how many layers have which precision, in one phrase."""
        rungs = [self.precisions[layer.name] for layer in self.high_layers]
        high = [name for name in HIGH_NAMES if name in rungs] or [self.pair.high]
        counts = [f"{rungs.count(name)} stay {name.upper()}" for name in high]
        counts[0] = counts[0].replace(" ", f" of {len(self.precisions)} layers ", 1)
        rest = f", the rest runs in {self.lowest.upper()}" * (len(rungs) < len(self.precisions))
        point = f" (point {self.point} of the curve)" * (self.point != ANSWER)
        return f"{', '.join(counts)}{rest}{point}"


def named_layers(export: Export) -> tuple[Layer, ...]:
    """Return the layers above the lowest precision, in network order.

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


def layers_in_tensorrt(export: Export) -> Mapping[str, PrecisionName]:
    """Return the layers above the lowest precision, which TensorRT can be told of by their names.

    Each comes with its precision. Raises NotWritable as `named_layers` does, and for operators of
    which TensorRT's parser builds layers without a name (seen with TensorRT-RTX 1.7.1), and for
    names that it cuts short.
    """
    for layer in named_layers(export):
        if "\0" in layer.name:
            raise NotWritable(f"TensorRT cuts the name {layer.name!r} short")
        if layer.op_type in _NAMELESS_INSIDE:
            raise NotWritable(
                f"TensorRT builds {layer.name!r} ({layer.op_type}) of layers without a name"
            )
    return {str(layer.name): export.precisions[layer.name] for layer in export.high_layers}
