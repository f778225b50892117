"""The switched graph: one FP32 graph in which every layer's rounding is switched at run time.

How a plan becomes one inference, without a build:

* Values are rounded on their way from layer to layer, by `If(flag) {round trip} else {Identity}`
  (see `edges`). ONNX Runtime executes only the branch taken (under a
  microsecond of overhead), and never removes an explicit round trip.
* A layer whose low form changes its weights becomes `If(flag) {layer with those weights} else
  {layer}`. Both copies are constants, so ONNX Runtime can pack them once. Constants that nodes
  compute are weights, too. Small ones of arithmetic are chosen by a Where instead, which takes a
  third of the memory of an If.
* So does a layer inside which the target stores values in the low type (see `semantics`), and one
  whose state is rounded at every step (see `recurrences`).
* What the target makes one kernel of is not rounded inside while all of it runs low (see
  `whole_kernels`).
* Inputs and outputs are rounded to the interface of what is deployed.
* All flags are one boolean input, split into scalars inside the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation import tf32 as tensor_cores
from precision_bisect.backends.emulation.edges import Edges
from precision_bisect.backends.emulation.layer_weights import EXACT, LayerWeights
from precision_bisect.backends.emulation.recurrences import Recurrences
from precision_bisect.backends.emulation.semantics import Semantics, whole_kernels
from precision_bisect.backends.emulation.snippets import (
    NO_LAYER,
    Flags,
    identity,
    split_flags,
    switch_node,
)
from precision_bisect.backends.emulation.steps import KERNELS_IN_STEPS
from precision_bisect.graphs.constant_values import read_constants
from precision_bisect.graphs.graph import copied, opset, refill, settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.quantization.calibration import OPERANDS
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.weights import INLINE_BYTES, Weights, drop_unused
from precision_bisect.graphs.whole_numbers import whole_numbers
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.layer_table import LayerForms, LayerName, forms_of
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.precisions import Form, Pair
from precision_bisect.settings.targets import Inside, TargetName

FLAGS_INPUT = "precision_bisect/flags"

# Bytes; larger convolution weights stay outside the graph, which protobuf limits to 2 GiB: 512 of
# this size fit. Answers are the same with half and double (`benchmarks/constants.py`).
_LARGEST_KERNEL = 2**22
# Operators that compute the same of a constant and of a value.
_ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div"))
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True)
class Switches:
    """How a plan sets the flags of a graph.

    `layers` has shape (flags, 4), see `Condition`; the numbers of `kernels` follow those of the
    candidates.
    """

    layers: NDArray[np.int64]
    kernels: Sequence[NDArray[np.int64]]

    def flags(self, low: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the flags, shape (flags,), for `low`, shape (candidates,): True where low."""
        # NO_LAYER is -1, so it reads the value that is appended at the end.
        padded = np.concatenate([low, [low[members].all() for members in self.kernels], [False]])
        first, second, unless, whole = padded.astype(np.bool_)[self.layers.T]
        switched: NDArray[np.bool_] = (first | second) & ~unless & ~whole
        return switched


@dataclass(frozen=True, slots=True)
class SwitchedGraph:
    """The graph, its weights, and how a plan sets its flags.

    `raw` has the name that each layer's output has before it is stored, by its name in the model.
    """

    proto: onnx.ModelProto
    weights: Weights
    switches: Switches
    raw: Mapping[str, str]


def switch(
    model: Model,
    pair: Pair,
    scales: Scales,
    *,
    target: TargetName = "tensorrt",
    factors: bool = False,
    tf32: bool = False,
) -> SwitchedGraph:
    """Return the switched graph of a model for a pair of precisions, as a target computes it.

    With `factors` the graph also has the input FACTORS. With `tf32` products that stay FP32 are
    TF32's, of layers and of other nodes.
    """
    graph = _Builder(model, pair, scales, Semantics(model, target), tf32=tf32).build()
    if factors:
        take_factors(graph.proto, model, graph.raw)
    renamed = model.interface.round_ends(graph.proto)
    raw = {name: renamed.get(stored, stored) for name, stored in graph.raw.items()}
    return replace(graph, raw=raw)


class _Builder:
    def __init__(
        self, model: Model, pair: Pair, scales: Scales, semantics: Semantics, *, tf32: bool
    ) -> None:
        self._model = model
        self._tf32 = tf32
        self._semantics = semantics
        self._view = View(model)
        self._recurrences = Recurrences(self._view, opset(model.proto), semantics.target)
        # A layer that is FP32 in both forms rounds nothing: it needs no edges.
        self._forms = {
            name: forms
            for name, forms in forms_of(model.table, pair).items()
            if forms.all != {EXACT}
        }
        self._index = {name: i for i, name in enumerate(model.table.names)}
        self._nodes: list[onnx.NodeProto] = []
        self._flags = Flags()
        # Weak: what no graph holds any more takes no memory.
        shared = model.held.setdefault(LayerWeights, WeakValueDictionary())
        constants = read_constants(model, frozenset(self._forms))
        self._weights = LayerWeights(constants, scales, shared)
        self._kernels = whole_kernels(model, pair, [semantics.target])
        self._edges = Edges(
            model, pair, self._forms, scales, self._flags, self._nodes, self._kernels.interior
        )

    def build(self) -> SwitchedGraph:
        source = self._model.proto
        for node in source.graph.node:
            look_at_clock()
            forms = self._forms.get(LayerName(node.name))
            if forms is not None:
                self._layer(node, forms)
            elif self._tf32:
                types = self._model.elem_types
                self._nodes += tensor_cores.with_rounded_operands(node, self._view, types)
            else:
                self._nodes.append(node)
        graph = onnx.GraphProto(name=source.graph.name or "switched")
        count = len(self._flags.conditions)
        if count:
            names = [Flags.name(i) for i in range(count)]
            graph.node.append(split_flags(FLAGS_INPUT, names, opset(source)))
        graph.node.extend(self._nodes)
        graph.input.extend(source.graph.input)
        graph.input.append(
            helper.make_tensor_value_info(FLAGS_INPUT, onnx.TensorProto.BOOL, [count])
        )
        graph.output.extend(source.graph.output)
        graph.initializer.extend(source.graph.initializer)
        graph.initializer.extend(self._weights.initializers)
        graph.initializer.extend(tensor_cores.initializers() if self._tf32 else ())
        graph.initializer.extend(self._edges.quantizers.initializers.values())
        proto = onnx.ModelProto(ir_version=source.ir_version, graph=graph)
        proto.opset_import.extend(source.opset_import)
        weights = {**self._model.weights, **self._weights.held}
        # Weights that are only read in their rounded form are dropped.
        drop_unused(proto.graph, weights)
        conditions = np.array(self._flags.conditions, np.int64).reshape(-1, 4)
        raw = {
            name: self._edges.raw(name)
            for node in source.graph.node
            if LayerName(node.name) in self._forms
            for name in node.output
            if name
        }
        return SwitchedGraph(proto, weights, Switches(conditions, self._kernels.members), raw)

    def _layer(self, node: onnx.NodeProto, forms: LayerForms) -> None:
        """Append a layer with its edges, in two versions if its weights differ by its form."""
        copy = copied(node)
        settings = settings_of(node)
        low: dict[int, str] = {}
        high: dict[int, str] = {}
        for i, name in enumerate(node.input):
            if not name or i in settings:
                continue
            if name in self._weights:
                low[i], high[i] = (
                    self._weights.named(name, form, operand=i in OPERANDS)
                    for form in (forms.low, forms.high)
                )
            else:
                copy.input[i] = self._edges.read(name, node, i)
        for i, name in enumerate(node.output):
            copy.output[i] = self._edges.raw(name)
        # The same node serves both types where nothing inside it is rounded.
        if low == high and (
            forms.low.stored == forms.high.stored or not self._rounds_inside(node)
        ):
            self._nodes.extend(self._computed(node, _reading(copy, high), forms.high))
        # A choice between two weights is cheaper than the node in two branches of an If.
        elif self._is_arithmetic(node, high):
            self._nodes.append(_reading(copy, self._chosen(node, low, high)))
        else:
            self._nodes.append(
                self._two_versions(node, forms, _reading(copy, low), _reading(copy, high))
            )
        self._in_steps(node, copy, forms)
        self._edges.store(node)

    def _in_steps(self, node: onnx.NodeProto, renamed: onnx.NodeProto, forms: LayerForms) -> None:
        """Have a kernel that stores its steps give the result in place of its last layer."""
        name = LayerName(node.name)
        kernel, kind = self._kernels.endings.get(name), LOW_TYPES.get(forms.low.stored)
        if kernel is None or kind is None or kernel.op_type not in KERNELS_IN_STEPS:
            return
        flag = self._whole(name)
        read = dict(zip(node.input, renamed.input, strict=True))
        inputs = [read.get(source, source) for source in kernel.input]
        steps = helper.make_node(kernel.op_type, inputs, [f"{flag}/steps"])
        # The pieces stay for plans that keep one of them, where the kernel is not formed.
        out, pieces = self._nodes[-1].output[0], f"{flag}/pieces"
        self._nodes[-1].output[0] = pieces
        low = self._semantics.written(kernel, steps, kind)
        self._nodes.append(
            switch_node(
                flag,
                {out: _FLOAT},
                (low, [f"{flag}/steps"]),
                (identity(pieces, f"{flag}/plain"), [f"{flag}/plain"]),
            )
        )

    def _is_arithmetic(self, node: onnx.NodeProto, weights: Mapping[int, str]) -> bool:
        """Tell whether a layer only combines its input with small weights, element by element."""
        arrays = (self._weights.array(name) for name in weights.values())
        small = all(array is not None and array.nbytes <= INLINE_BYTES for array in arrays)
        # A flag has one dimension, which a scalar result would take over.
        ranked = bool(self._view.shape(node.output[0]))
        return node.op_type in _ARITHMETIC and small and ranked and not self._rounds_inside(node)

    def _chosen(
        self, node: onnx.NodeProto, low: Mapping[int, str], high: Mapping[int, str]
    ) -> dict[int, str]:
        """Return the names of the weights that a layer reads, chosen by its flag."""
        flag = self._alone(node)
        chosen = {i: f"{flag}/chosen/{i}" for i in high}
        for i, name in chosen.items():
            self._nodes.append(helper.make_node("Where", [flag, low[i], high[i]], [name]))
        return chosen

    def _rounds_inside(self, node: onnx.NodeProto) -> bool:
        """Tell whether the layer stores values in between that its form rounds."""
        stores = self._semantics.inside(node) is not Inside.FP32
        return stores or self._recurrences.has_steps(node) or self._on_tensor_cores(node)

    def _on_tensor_cores(self, node: onnx.NodeProto) -> bool:
        return self._tf32 and tensor_cores.is_product(node, self._view)

    def _product(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return a product whose two operands are rounded to TF32."""
        nodes, rounded = [], copied(node)
        for i, name in enumerate(node.input[: tensor_cores.OPERANDS]):
            if self._weights.array(name) is not None:
                rounded.input[i] = self._weights.rounded_to_tf32(name)
            else:
                rounded.input[i] = f"{node.output[0]}/tf32/{i}"
                nodes += tensor_cores.rounded_operand(name, rounded.input[i], self._view.opset)
        return [*nodes, rounded]

    def _computed(
        self, node: onnx.NodeProto, renamed: onnx.NodeProto, form: Form
    ) -> list[onnx.NodeProto]:
        """Return the nodes that compute a layer in a form, under the names of `renamed`."""
        kind = LOW_TYPES.get(form.stored)
        if kind is None and form.quantized is None and self._on_tensor_cores(node):
            return self._product(renamed)
        if kind is not None and self._recurrences.has_steps(node):
            return self._recurrences.written(node, renamed, kind)
        inside = self._semantics.inside(node)
        if kind is None or inside is Inside.FP32:
            return [renamed]
        return self._semantics.written(node, renamed, kind, self._whole(LayerName(node.name)))

    def _alone(self, node: onnx.NodeProto) -> str:
        """Return a flag that is on where the layer runs low."""
        return self._flags.add((self._index[LayerName(node.name)], NO_LAYER, NO_LAYER, NO_LAYER))

    def _whole(self, layer: LayerName) -> str:
        """Return a flag that is on where all of the layer's kernel runs low, "" without one."""
        kernel = self._kernels.layers.get(layer)
        return "" if kernel is None else self._flags.add((kernel, NO_LAYER, NO_LAYER, NO_LAYER))

    def _two_versions(
        self, node: onnx.NodeProto, forms: LayerForms, low: onnx.NodeProto, high: onnx.NodeProto
    ) -> onnx.NodeProto:
        flag = self._alone(node)
        kinds = {
            self._edges.raw(name): self._model.elem_types.get(name, onnx.TensorProto.FLOAT)
            for name in node.output
            if name
        }
        for end, version in (("low", low), ("high", high)):
            for i, name in enumerate(node.output):
                version.output[i] = f"{flag}/{end}/{i}" if name else ""
        branches = [
            (self._computed(node, version, form), [name for name in version.output if name])
            for version, form in ((low, forms.low), (high, forms.high))
        ]
        switched = switch_node(flag, kinds, branches[0], branches[1])
        if self._is_spatial_convolution(node):
            self._take_in_weights(switched)
        return switched

    def _is_spatial_convolution(self, node: onnx.NodeProto) -> bool:
        """Tell whether ONNX Runtime has blocked kernels for the layer, and they pay."""
        kernel = self._weights.array(node.input[1]) if node.op_type == "Conv" else None
        if kernel is None or kernel.nbytes > _LARGEST_KERNEL:
            return False
        return max(kernel.shape[2:], default=0) > 1

    def _take_in_weights(self, switched: onnx.NodeProto) -> None:
        """Give each branch its own weights: the blocked kernels take none from outside."""
        for branch in (attribute.g for attribute in switched.attribute):
            node = branch.node[-1]
            for i, name in enumerate(node.input):
                array = self._weights.array(name)
                if i > 0 and array is not None:
                    node.input[i] = f"{node.output[0]}/weight/{i}"
                    own = onnx.numpy_helper.from_array(np.ascontiguousarray(array), node.input[i])
                    branch.initializer.append(own)


def _reading(node: onnx.NodeProto, inputs: Mapping[int, str]) -> onnx.NodeProto:
    """Return a copy of the node with these names at these positions of its inputs."""
    copy = copied(node)
    for i, name in inputs.items():
        copy.input[i] = name
    return copy


def take_factors(proto: onnx.ModelProto, model: Model, raw: Mapping[str, str]) -> None:
    """Give the graph the input FACTORS, shape (layers,), and multiply each layer's outputs by it.

    Inputs that are all integers cannot be changed a little; a factor of 1 +- 1e-6 on each layer,
    before its value is rounded, does the same to rounding: another draw of it. Not so where
    integers are computed from integers: an index of 127 is exact in FP32, whatever the engine.
    `raw` has the name of each output before it is stored, by its name in the model.
    """
    graph = proto.graph
    index = {name: i for i, name in enumerate(model.table.names)}
    exact = whole_numbers(model).exact
    layer_of = {
        raw.get(output, output): index[LayerName(node.name)]
        for node in model.proto.graph.node
        if LayerName(node.name) in index
        for output in node.output
        if model.elem_types.get(output) == _FLOAT and output not in exact
    }
    factors = [f"precision_bisect/factor/{i}" for i in range(len(index))]
    nodes = []
    for i, factor in enumerate(factors):
        # A scalar leaves the shape of the other operand as it is.
        place = onnx.numpy_helper.from_array(np.array(i), f"{factor}/place")
        graph.initializer.append(place)
        nodes.append(helper.make_node("Gather", [FACTORS, place.name], [factor]))
    for node in graph.node:
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in layer_of:
                node.output[i] = f"{name}/exact"
                operands = [node.output[i], factors[layer_of[name]]]
                nodes.append(helper.make_node("Mul", operands, [name]))
    refill(graph.node, nodes)
    graph.input.append(helper.make_tensor_value_info(FACTORS, _FLOAT, [len(index)]))
