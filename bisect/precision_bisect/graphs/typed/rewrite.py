"""From a model and a plan to a strongly typed graph: the types say what the plan says.

Each layer reads and writes the type that it computes in. Casts stand only where a value crosses
from one float type to another, one per tensor and direction, shared by all readers. Weights cross
in the file instead, as a copy in that type. Inputs of INT8 and FP8 layers go through
QuantizeLinear and DequantizeLinear; their weights are stored quantized. The graph computes what
the emulator predicts, up to the order and precision of sums inside an operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import onnx
from onnx import numpy_helper

from precision_bisect.errors import ModelError
from precision_bisect.graphs.constant_values import OutOfRange, folded
from precision_bisect.graphs.graph import Names, captured, copied, opset, refill
from precision_bisect.graphs.load import Model, at_least_opset
from precision_bisect.graphs.lowtypes import BF16, LOW_TYPES, QUANTIZED
from precision_bisect.graphs.ort_fusions import Kernel, norms_of_one_type
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.high_nodes import HighNode, high_nodes
from precision_bisect.graphs.typed.layout import Assignment, Layout, every_form
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.typed.writing import Writing, islands
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.plan import Plan
from precision_bisect.precisions import Form, Pair

# The first opset at which convolutions, pooling and the like take bfloat16.
_BF16_OPSET = 22
# The first opset whose DequantizeLinear takes a scale per channel.
_PER_CHANNEL_OPSET = 13
# The first opset whose DequantizeLinear gives 16-bit floats.
_HALF_SCALES_OPSET = 19


class TypedWriter:
    """Writes plans of one model into typed graphs.

    Candidates that a plan drops compute in the pair's low form, kept and pinned layers in the high
    one, unless they are fixed. `scales` are those of everything that an INT8 or FP8 layer reads.
    `not_low` has the candidates without a low form, each with the reason: they stay high whatever
    a plan says. Raises ModelError if a type needs a newer opset and onnx cannot convert the model.
    """

    def __init__(self, model: Model, pair: Pair, scales: Scales | None = None) -> None:
        self.model = model
        self.pair = pair
        self._scales = scales or Scales()
        forms = every_form(model.table, pair)
        lowest, needing = _lowest_opset(forms)
        self._converted = at_least_opset(with_float_biases(model), lowest, needing)
        self._layout = Layout(self._converted, pair, self._scales)
        # Only if it helps: the files that are written have the newer opset, too.
        if BF16.name in self._layout.forms and self._layout.without_form:
            self._take_newer_opset()
        if any(form.quantized for form in forms):
            self._converted = _in_matching_format(self._converted)
        self._names = Names(self._converted.proto.graph)
        self.not_low: Mapping[LayerName, str] = self._layout.not_low
        self._high: dict[Plan, Mapping[LayerName, HighNode]] = {}

    @cached_property
    def _norms(self) -> Sequence[Kernel]:
        return norms_of_one_type(self._converted)

    def _take_newer_opset(self) -> None:
        """Convert the model if that gives more of its layers a form in BF16."""
        try:
            model = at_least_opset(self._converted, _BF16_OPSET)
        except ModelError:
            return
        layout = Layout(model, self.pair, self._scales)
        if layout.without_form < self._layout.without_form:
            self._converted, self._layout = model, layout

    @property
    def opset(self) -> int:
        """The opset of the files that are written."""
        return opset(self._converted.proto)

    @cached_property
    def out_of_range(self) -> Sequence[OutOfRange]:
        """The weights of layers and followers that become infinite in the low type, in order.

        None for 8-bit types, whose scales take care of the range.
        """
        low = LOW_TYPES.get(self.pair.low)
        if low is None:
            return ()
        forms = self._layout.forms[low.name]
        read = (
            node.input[i]
            for node in self._converted.proto.graph.node
            if node.name in forms
            for i in sorted(forms[node.name].inputs)
        )
        return tuple(self._layout.constants.out_of_range(read, low))

    def write(self, plan: Plan, guard_islands: bool = True, *, seal: bool = False) -> TypedGraph:
        """Return the typed graph of a plan, with the interface of the model.

        With `guard_islands` an FP32 input of each kept layer that builders would turn back into a
        low one, or fail to build, gets a guard: see `islands`. With `seal` ONNX Runtime opens the
        graph with its defaults: see `spread_norms`.
        """
        placement = self._layout.place(self._assignment(plan))
        writing = Writing(self._converted, self._scales, self._layout, self._names, placement)
        norms = self._norms if seal else ()
        typed = writing.write(guard_islands, self.model.interface.inputs.keys(), norms)
        self.model.interface.declare(typed.proto)
        return typed

    def lone_islands(self, plan: Plan) -> Sequence[LayerName]:
        """Return the layers of a plan that `write` guards, in order."""
        placement = self._layout.place(self._assignment(plan))
        return tuple(islands(self._converted, placement, self._layout.constants))

    def high_nodes(self, plan: Plan) -> Mapping[LayerName, HighNode]:
        """Return every node that the typed graph of a plan has above the low type, in order.

        Nodes that only move values or read them are among them, layers of other types are not.
        """
        nodes = self._high.get(plan)
        if nodes is None:
            placement = self._layout.place(self._assignment(plan))
            nodes = high_nodes(self._converted, self.pair, self._layout, placement)
            # Every export of a plan asks for them; of earlier plans nothing is held.
            self._high = {plan: nodes}
        return nodes

    def _assignment(self, plan: Plan) -> Assignment:
        table = self._converted.table
        kept = {table.names[index] for index in plan.kept}
        forms = forms_of(table, self.pair).items()
        return {name: form.high if name in kept else form.low for name, form in forms}


def writer_of(model: Model, pair: Pair, scales: Scales | None = None) -> TypedWriter:
    """Return the writer of a model, which holds it where no scales are needed.

    Raises ModelError as `TypedWriter` does.
    """
    if scales is not None and (scales.activations or scales.weights):
        return TypedWriter(model, pair, scales)
    if (key := (TypedWriter, pair)) not in model.held:
        model.held[key] = TypedWriter(model, pair)
    writer: TypedWriter = model.held[key]
    return writer


def _in_matching_format(model: Model) -> Model:
    """Return the model with the version of ONNX's file format that belongs to its opset.

    Conversion to a newer opset keeps the old version, which has no 8-bit floats.
    """
    proto = copied(model.proto)
    needed = onnx.helper.find_min_ir_version_for(list(proto.opset_import), True)
    proto.ir_version = max(proto.ir_version, needed)
    return replace(model, proto=proto)


def _lowest_opset(forms: Sequence[Form]) -> tuple[int, str]:
    """Return the first opset that has all types in use, and what needs it."""
    needs = [(1, "")]
    for form in forms:
        if form.stored in LOW_TYPES:
            needs.append((LOW_TYPES[form.stored].lowest_opset, form.stored))
        if form.quantized is not None:
            kind = QUANTIZED[form.quantized]
            around = _HALF_SCALES_OPSET if form.stored in LOW_TYPES else _PER_CHANNEL_OPSET
            what = f"{kind.name} between {form.stored} layers"
            needs.append((max(kind.lowest_opset, around), what))
    return max(needs)


def with_float_biases(model: Model) -> Model:
    """Return the model with FP32 constants for dequantized int32 ones; itself if it has none.

    ONNX Runtime's quantizer writes such biases, and TensorRT does not take them. Other runtimes
    compute the same from the constants.
    """
    tensors = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    biases = [node for node in model.proto.graph.node if _is_bias(node, tensors)]
    if not biases:
        return model
    proto = copied(model.proto)
    names = {node.output[0] for node in biases}
    nodes = [node for node in proto.graph.node if names.isdisjoint(node.output)]
    refill(proto.graph.node, nodes)
    # Others, subgraphs too, may read the int32 constants as well; then they stay.
    read = {name for node in nodes for name in (*node.input, *captured(node))}
    unread = {name for node in biases for name in node.input} - read
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in unread]
    refill(proto.graph.initializer, kept)
    values = folded(model, names)
    proto.graph.initializer.extend(
        numpy_helper.from_array(values[node.output[0]], node.output[0]) for node in biases
    )
    return replace(model, proto=proto)


def _is_bias(node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> bool:
    if node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return False
    read = [name for name in node.input if name]
    if not all(name in tensors for name in read):
        return False
    values, scale = tensors[read[0]], tensors[read[1]]
    return (
        values.data_type == onnx.TensorProto.INT32
        and scale.data_type == onnx.TensorProto.FLOAT
        and len(scale.dims) <= 1
    )
