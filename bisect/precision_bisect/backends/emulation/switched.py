"""The switched graph: one FP32 graph in which every layer's rounding is switched at run time.

How a plan becomes one inference, without a build:

* The value that runs from a layer to a reader of it is an *edge*. An edge is rounded to the low
  type and back when the layer or the reader runs low, by `If(flag) {Cast, Cast} else {Identity}`.
  ONNX Runtime executes only the branch taken (under a microsecond of overhead), and never removes
  an explicit round trip. A value with several readers is rounded as its layer stores it, once,
  and again only where that layer runs high and the reader low.
* A layer with weights that the low type changes becomes `If(flag) {layer with rounded weights}
  else {layer}`: both copies are constants, so that ONNX Runtime can pack them once. Constants that
  nodes compute are weights, too.
* All flags are one boolean input, split into scalars inside the graph.

Readers that are no candidates (followers, control flow, outputs) see the value as the layer stored
it. Rounding is idempotent, so rounding again after a follower changes nothing.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.constants import constant_outputs, folded_constants
from precision_bisect.backends.emulation.readers import settled_for, stored_names
from precision_bisect.backends.emulation.snippets import (
    round_trip,
    rounded_where_declared,
    split_flags,
    switch_node,
)
from precision_bisect.lowtypes import LowType
from precision_bisect.model.graph import opset
from precision_bisect.model.load import Model
from precision_bisect.model.settings import settings_of
from precision_bisect.model.weights import INLINE_BYTES, Weights, drop_unused, stub

FLAGS = "precision_bisect/flags"
_FLOAT = onnx.TensorProto.FLOAT

NO_LAYER = -1

_LARGEST_KERNEL = 2**22
"""In bytes; larger convolution weights stay outside the graph, which protobuf limits to 2 GiB."""


@dataclass(frozen=True, slots=True)
class SwitchedGraph:
    """The graph and how a plan sets its flags.

    `flag_layers` has shape (flags, 3): a flag is on when one of the first two candidates runs low
    and the third does not; NO_LAYER stands for no candidate.
    """

    proto: onnx.ModelProto
    weights: Weights
    flag_layers: NDArray[np.int64]

    def flags(self, low: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the flags, shape (flags,), for `low`, shape (candidates,): True where low."""
        padded = np.append(low, False)
        first, second, unless = padded[self.flag_layers.T]
        switched: NDArray[np.bool_] = (first | second) & ~unless
        return switched


def switch(model: Model, low: LowType) -> SwitchedGraph:
    """Return the switched graph of a model for one low type."""
    return _Builder(model, low).build()


@dataclass
class _Builder:
    model: Model
    low: LowType
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    flag_layers: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.model.proto.graph
        names = [layer.name for layer in self.model.table.candidates]
        self.index = {str(name): i for i, name in enumerate(names)}
        self.producer = {
            output: self.index[node.name]
            for node in graph.node
            if node.name in self.index
            for output in node.output
            if self.model.elem_types.get(output) == _FLOAT
        }
        self.stored = stored_names(self.model)
        self.settled = {
            name: self.index[reader] for name, reader in settled_for(self.model).items()
        }
        self.bystanders = {
            node.name: rounded_where_declared(
                node, dict(self.model.low_tensors), "precision_bisect/declared"
            )
            for node in graph.node
            if node.name not in self.index
        }
        self.added: Weights = {}
        self.constants = self._constants()
        self.rounded: dict[str, str | None] = {}

    def build(self) -> SwitchedGraph:
        source = self.model.proto
        for node in source.graph.node:
            if node.name in self.index:
                self._candidate(node, self.index[node.name])
            else:
                self.nodes.extend(self.bystanders[node.name])
        graph = onnx.GraphProto(name=source.graph.name or "switched")
        if self.flag_layers:
            flags = [_flag_name(i) for i in range(len(self.flag_layers))]
            graph.node.append(split_flags(FLAGS, flags, opset(source)))
        graph.node.extend(self.nodes)
        graph.input.extend(source.graph.input)
        graph.input.append(
            helper.make_tensor_value_info(FLAGS, onnx.TensorProto.BOOL, [len(self.flag_layers)])
        )
        graph.output.extend(source.graph.output)
        graph.initializer.extend(source.graph.initializer)
        graph.initializer.extend(self.initializers)
        proto = onnx.ModelProto(ir_version=source.ir_version, graph=graph)
        proto.opset_import.extend(source.opset_import)
        weights = {**self.model.weights, **self.weights}
        drop_unused(proto.graph, weights)
        return SwitchedGraph(
            proto,
            weights,
            np.array(self.flag_layers, np.int64).reshape(-1, 3),
        )

    def _constants(self) -> dict[str, NDArray[np.generic]]:
        """Return the FP32 constants that candidates may read, those that nodes compute as well."""
        graph = self.model.proto.graph
        read = {
            name
            for node in graph.node
            if node.name in self.index
            for i, name in enumerate(node.input)
            if i not in settings_of(node)
        }
        found = {
            tensor.name: self.model.weights[tensor.name]
            if tensor.name in self.model.weights
            else onnx.numpy_helper.to_array(tensor)
            for tensor in graph.initializer
            if tensor.data_type == _FLOAT and tensor.name in read
        }
        nodes = [node for group in self.bystanders.values() for node in group]
        folded = folded_constants(self.model, nodes, constant_outputs(self.model) & read)
        self.folded = {name: f"precision_bisect/constant/{name}" for name in folded}
        for name, array in folded.items():
            self._add_constant(self.folded[name], array)
        return found | folded

    def _candidate(self, node: onnx.NodeProto, layer: int) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        settings = settings_of(node)
        for i, name in enumerate(node.input):
            if name in self.constants:
                copy.input[i] = self.folded.get(name, name)
            elif name and i not in settings:
                copy.input[i] = self._read(name, layer)
        for i, name in enumerate(node.output):
            copy.output[i] = self._raw(name)
        self._emit_layer(copy, node, layer)
        for name in node.output:
            if self.producer.get(name) == layer and name in self.stored:
                reader = self.settled.get(name, NO_LAYER)
                self._edge(self._raw(name), name, (layer, reader, NO_LAYER))

    def _read(self, name: str, layer: int) -> str:
        """Return the name under which candidate `layer` reads `name`, rounded as the flags say."""
        if self.model.elem_types.get(name) != _FLOAT:
            return name
        stored = name in self.stored or name not in self.producer
        if stored and self.settled.get(name) == layer:
            return name
        source = self.producer.get(name, NO_LAYER)
        edge = f"precision_bisect/edge/{len(self.flag_layers)}/{name}"
        if name in self.stored:
            self._edge(name, edge, (layer, NO_LAYER, source))
        else:
            self._edge(self._raw(name), edge, (layer, source, NO_LAYER))
        return edge

    def _raw(self, name: str) -> str:
        """Return the name of a candidate's value before it is stored; other names as they are."""
        return f"precision_bisect/raw/{name}" if name in self.producer else name

    def _flag(self, layers: tuple[int, int, int]) -> str:
        self.flag_layers.append(layers)
        return _flag_name(len(self.flag_layers) - 1)

    def _edge(self, raw: str, out: str, layers: tuple[int, int, int]) -> None:
        flag = self._flag(layers)
        low, high = f"{flag}/low", f"{flag}/high"
        self.nodes.append(
            switch_node(
                flag,
                {out: _FLOAT},
                (round_trip(raw, low, self.low.onnx_type), [low]),
                ([helper.make_node("Identity", [raw], [high])], [high]),
            )
        )

    def _emit_layer(self, node: onnx.NodeProto, original: onnx.NodeProto, layer: int) -> None:
        """Append the layer itself, in two versions where the low type changes its weights."""
        changed = {
            i: rounded
            for i, name in enumerate(original.input)
            if i not in settings_of(node) and (rounded := self._rounded_weight(name))
        }
        if not changed:
            self.nodes.append(node)
            return
        flag = self._flag((layer, NO_LAYER, NO_LAYER))
        kinds = {
            self._raw(name): self.model.elem_types.get(name, _FLOAT)
            for name in original.output
            if name
        }
        branches = []
        for branch in ("low", "high"):
            version = onnx.NodeProto()
            version.CopyFrom(node)
            for i, name in enumerate(node.output):
                version.output[i] = f"{flag}/{branch}/{i}" if name else ""
            if branch == "low":
                for i, rounded in changed.items():
                    version.input[i] = rounded
            branches.append(([version], [name for name in version.output if name]))
        switched = switch_node(flag, kinds, branches[0], branches[1])
        if self._is_spatial_convolution(node):
            self._take_in_weights(switched)
        self.nodes.append(switched)

    def _is_spatial_convolution(self, node: onnx.NodeProto) -> bool:
        """Tell whether ONNX Runtime has blocked kernels for the layer that pay for themselves."""
        kernel = self.constants.get(node.input[1]) if node.op_type == "Conv" else None
        if kernel is None or kernel.nbytes > _LARGEST_KERNEL:
            return False
        return max(kernel.shape[2:], default=0) > 1

    def _take_in_weights(self, switched: onnx.NodeProto) -> None:
        """Give each branch its own weights: the blocked kernels take none from outside."""
        for branch in (attribute.g for attribute in switched.attribute):
            (node,) = branch.node
            for i, name in enumerate(node.input):
                array = self.added.get(name, self.constants.get(name))
                if i > 0 and array is not None:
                    node.input[i] = f"{node.output[0]}/weight/{i}"
                    own = onnx.numpy_helper.from_array(np.ascontiguousarray(array), node.input[i])
                    branch.initializer.append(own)

    def _rounded_weight(self, name: str) -> str | None:
        """Return the name of the rounded copy of a weight; None where rounding changes nothing."""
        if name not in self.constants:
            return None
        if name not in self.rounded:
            values = self.constants[name].astype(np.float32, copy=False)
            rounded = self.low.round(values)
            same = np.array_equal(rounded, values, equal_nan=True)
            self.rounded[name] = None if same else f"precision_bisect/low/{name}"
            if not same:
                self._add_constant(f"precision_bisect/low/{name}", rounded)
        return self.rounded[name]

    def _add_constant(self, name: str, array: NDArray[np.generic]) -> None:
        self.added[name] = array
        if array.nbytes > INLINE_BYTES:
            self.weights[name] = array
            self.initializers.append(stub(name, array))
        else:
            self.initializers.append(onnx.numpy_helper.from_array(array, name))


def _flag_name(number: int) -> str:
    return f"precision_bisect/flag/{number}"
