"""What every export writes down: a model, the precision of each layer of it, and the scales."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from precision_bisect.backends.backend_plugin import SampleShapes
from precision_bisect.backends.tensorrt.profiles import ShapeRange
from precision_bisect.backends.trtexec.trtexec_flags import open_ranges
from precision_bisect.errors import PrecisionBisectError, UsageError, counted
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.quantization.scales import Scales, quantized_in_file
from precision_bisect.graphs.typed.high_nodes import HighNode, ToldNodes, told
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.layer_table import ASSIGNED, Exclusion, Layer, LayerName, assigned
from precision_bisect.plan import Plan
from precision_bisect.precisions import HIGH_NAMES, Pair, PrecisionName, QuantizedName
from precision_bisect.runs.results.result import Diagnosis
from precision_bisect.runs.runfolder import FP32_MODEL
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.export_points import DEPLOY, FEWEST, NEAR_MISS

T = TypeVar("T")
# Operators whose layers only lead into one fused operation, or share memory.
_WITHOUT_PRECISION = ("Attention", "TensorScatter")


class NotWritable(Exception):
    """An export cannot say exactly this plan; the message says why, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A plan to write down.

    `kept` are names of candidates of `model`, which stay in the pair's high type. What the model's
    table calls pinned stays high, too, or in the form that it is fixed to: the plan was judged
    with those layers so. `scales` are needed where a layer is INT8 or FP8. The `diagnosis` is told
    by the exports that have a place for it, and so is the `point` of the curve that the plan is.
    `shapes` are those that the samples of the run had, by input; `run` is the fingerprint of it.
    `modules` of PyTorch hold the plan whole, as a trial has shown; none where none was tried.
    `folder` is where the files will lie, `no_mixed` why there is no typed model, None if there is.
    With `seal` ONNX Runtime opens the typed model by its defaults.
    """

    model: Model
    kept: Sequence[LayerName]
    pair: Pair
    settings: EngineSettings
    scales: Scales = field(default_factory=Scales)
    diagnosis: Sequence[Diagnosis] = ()
    point: str = FEWEST
    shapes: SampleShapes = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[str] = ()
    folder: Path = Path()
    no_mixed: str | None = None
    seal: bool = False

    @property
    def needs_fp32_form(self) -> bool:
        """Whether the file has 16-bit floats, or another interface than what was judged."""
        return bool(self.model.in_low) or self.model.rounds_ends

    @property
    def by_name(self) -> Path:
        """The model that exports by layer name are for: the file, or its FP32 form beside them."""
        return self.folder / FP32_MODEL if self.needs_fp32_form else self.model.path

    @property
    def plan(self) -> Plan:
        """The plan that keeps `kept`."""
        return self.model.table.plan_of(self.kept)

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

    @cached_property
    def high(self) -> Mapping[LayerName, HighNode]:
        """Every node that the plan leaves above the lowest precision, layers or not, in order.

        Raises NotWritable where the model cannot be typed.
        """
        try:
            writer = writer_of(self.model, self.pair, self.scales)
        except PrecisionBisectError as error:
            raise NotWritable(error.one_line()) from error
        return writer.high_nodes(self.plan)

    @property
    def below_fp32(self) -> tuple[PrecisionName, ...]:
        """The precisions below FP32 that engines must be allowed to use, the lowest first."""
        wanted = {self.pair.low, self.pair.high, *self.precisions.values()}
        return tuple(name for name in (*QUANTIZED, *LOW_TYPES) if name in wanted)

    @cached_property
    def quantized_in_file(self) -> tuple[QuantizedName, ...]:
        """The 8-bit types that the model's own quantization has."""
        return quantized_in_file(self.model)

    @cached_property
    def builder_types(self) -> tuple[PrecisionName, ...]:
        """The same, with the 8-bit types that the model's own quantization has."""
        wanted = {*self.below_fp32, *self.quantized_in_file}
        return tuple(name for name in (*QUANTIZED, *LOW_TYPES) if name in wanted)

    @property
    def quantized(self) -> bool:
        """Whether some layer may be INT8 or FP8, so that names alone do not say the plan."""
        return any(name in QUANTIZED for name in self.below_fp32)

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """The names of initializers, after which TensorRT calls layers, too."""
        graphs = all_graphs(self.model.proto.graph)
        return frozenset(tensor.name for graph in graphs for tensor in graph.initializer)

    def summary(self) -> str:
        """Return how many layers have which precision, in one phrase."""
        rungs = [self.precisions[layer.name] for layer in self.high_layers]
        high = [name for name in HIGH_NAMES if name in rungs] or [self.pair.high]
        whole = f" of {counted(len(self.precisions), 'layer')}"
        counts = [
            f"{rungs.count(name)}{whole * (name == high[0])} stay {name.upper()}" for name in high
        ]
        low = len(self.precisions) - len(rungs)
        rest = f", {low} run{'s' * (low == 1)} in {self.lowest.upper()}" * (low > 0)
        special = {
            FEWEST: "",
            DEPLOY: " (the plan to deploy)",
            NEAR_MISS: " (a near miss, which is no answer)",
        }
        point = special.get(self.point, f" (point {self.point} of the curve)")
        return f"{', '.join(counts)}{rest}{point}"


def once(function: Callable[[Export], T]) -> Callable[[Export], T]:
    """Have what several exporters ask of an export be computed once for each; errors are not."""

    @wraps(function)
    def held(export: Export) -> T:
        # In its own dictionary, as its cached properties are.
        values, key = vars(export), f"{function.__module__}.{function.__name__}"
        if key not in values:
            values[key] = function(export)
        value: T = values[key]
        return value

    return held


def engine_ranges(
    model: Model, settings: EngineSettings, shapes: SampleShapes
) -> dict[str, ShapeRange]:
    """Return the range of every dynamic input: the user's, else that of the samples' `shapes`.

    Raises NotWritable for shapes that cannot work.
    """
    sampled = {name: sizes for name, sizes in shapes.items() if name not in settings.opt_shapes}
    try:
        return open_ranges(model, settings, sampled)
    except UsageError as error:
        raise NotWritable(error.message) from error


def named_nodes(export: Export) -> Mapping[LayerName, HighNode]:
    """Return the nodes above the lowest precision, in network order.

    Raises NotWritable where there is none, and where the model's file does not carry the name of
    one of them exactly once, so that other tools call the node something else.
    """
    if not export.high:
        raise NotWritable("no layer is kept")
    _check_names(export, export.high.keys())
    return export.high


@once
def nodes_in_tensorrt(export: Export) -> ToldNodes:
    """Return what every weak export tells TensorRT: the nodes above the lowest precision.

    Those inside If, Loop and Scan are among them. The search on TensorRT marks the same. Raises
    NotWritable for names as `named_nodes` does, for those that TensorRT cuts short, and for what
    weak typing cannot keep.
    """
    nodes = told(export.high, export.model.table)
    layers = [layer for layer in export.model.table.with_bodies if layer.name in nodes]
    computing = [layer for layer in layers if layer.exclusion is not Exclusion.CONTROL_FLOW]
    _check_names(export, {layer.name for layer in computing})
    for layer in computing:
        if "\0" in layer.name:
            raise NotWritable(f"TensorRT cuts the name {layer.name!r} short")
        if layer.exclusion in ASSIGNED and layer.op_type in _WITHOUT_PRECISION:
            what = f"{layer.name!r} ({layer.op_type})"
            raise NotWritable(f"TensorRT has no precision to set for {what}")
    types = {*export.quantized_in_file, *(n for n in export.below_fp32 if n in QUANTIZED)}
    # Weak typing takes scales of one 8-bit type for the whole network.
    if len(types) > 1:
        raise NotWritable("TensorRT does not build INT8 beside FP8 by weak typing")
    return nodes


def _check_names(export: Export, nodes: Set[LayerName]) -> None:
    for layer in export.model.table.with_bodies:
        if layer.name in nodes and not layer.named_in_model:
            raise NotWritable(
                f"layer {layer.name!r} has no name of its own in the model, so other tools' name "
                "for it depends on their version; give every node a unique name and run again"
            )
