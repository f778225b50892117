"""One plan written into one graph, node by node."""

import onnx
from onnx import helper

from precision_bisect.layer_table import Exclusion, LayerName
from precision_bisect.lowtypes import LowType
from precision_bisect.model.load import Model
from precision_bisect.model.names import Names
from precision_bisect.model.weights import INLINE_BYTES, drop_unused, make_stub
from precision_bisect.typed.chunks import converted
from precision_bisect.typed.graph import TypedGraph, TypedWeight
from precision_bisect.typed.islands import islands
from precision_bisect.typed.layout import Layout, Placement

PREFIX = "precision_bisect"
_FLOAT = onnx.TensorProto.FLOAT


class Writing:
    """Writes one plan, given by its placement; use once."""

    def __init__(
        self, model: Model, low: LowType, layout: Layout, names: Names, placement: Placement
    ) -> None:
        self._model = model
        self._low = low
        self._layout = layout
        self._names = names
        self._placement = placement
        self._nodes: list[onnx.NodeProto] = []
        self._cast: dict[str, str] = {}
        self._added: dict[str, onnx.TensorProto] = {}
        self._weights = {
            name: TypedWeight(source=array, dtype=array.dtype)
            for name, array in model.weights.items()
        }

    def write(self, guard_islands: bool) -> TypedGraph:
        """Return the typed graph of the plan."""
        constants = self._layout.constants.names
        guards = islands(self._model, self._placement, constants) if guard_islands else {}
        for node in self._model.proto.graph.node:
            self._write(node, guards.get(LayerName(node.name)))
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model.proto)
        graph = proto.graph
        del graph.node[:]
        graph.node.extend(self._without_unread_constants())
        graph.initializer.extend(self._added.values())
        drop_unused(graph, {})
        self._retype(graph)
        stubs = {tensor.name for tensor in graph.initializer}
        return TypedGraph(
            proto=proto,
            weights={name: w for name, w in self._weights.items() if name in stubs},
            guarded=tuple(guards),
        )

    def _write(self, node: onnx.NodeProto, guard: int | None) -> None:
        """Append the node, and before and after it the Casts that it needs first."""
        form = self._placement.nodes.get(node.name)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for i, name in enumerate(node.input):
            if form is not None and i in form.inputs:
                copy.input[i] = self._in_low(name)
            elif self._layout.reads_any_type(node):
                copy.input[i] = self._stored(name)
            else:
                copy.input[i] = self._in_fp32(name)
        if guard is not None:
            copy.input[guard] = self._guard(node.name, copy.input[guard])
        self._nodes.append(copy)
        for i, name in enumerate(node.output):
            if form is not None and i in form.outputs:
                copy.output[i] = self._stored(name)
                if name in self._layout.public:
                    self._append_cast(name, copy.output[i], name, _FLOAT)

    def _stored(self, name: str) -> str:
        """Return the name of a tensor in the type in which it is stored."""
        renamed = name in self._placement.tensors and name in self._layout.public
        return self._names(f"{PREFIX}/low/{name}") if renamed else name

    def _in_fp32(self, name: str) -> str:
        """Return the name of a tensor in its own type, which is FP32 where it can be low."""
        if name not in self._placement.tensors or name in self._layout.public:
            return name
        return self._cast_once(name, _FLOAT)

    def _in_low(self, name: str) -> str:
        """Return the name of an FP32 tensor in the low type."""
        if name in self._placement.tensors:
            return self._stored(name)
        constant = self._low_constant(name)
        return self._cast_once(name, self._low.onnx_type) if constant is None else constant

    def _cast_once(self, name: str, kind: int) -> str:
        if name not in self._cast:
            self._cast[name] = self._names(self._cast_name(name, kind))
            self._append_cast(name, name, self._cast[name], kind)
        return self._cast[name]

    def _append_cast(self, tensor: str, source: str, out: str, kind: int) -> None:
        name = self._names(self._cast_name(tensor, kind))
        self._nodes.append(helper.make_node("Cast", [source], [out], name=name, to=kind))

    def _cast_name(self, tensor: str, kind: int) -> str:
        return f"{PREFIX}/cast/{tensor}/{'fp32' if kind == _FLOAT else self._low.name}"

    def _low_constant(self, name: str) -> str | None:
        """Return the low copy of a constant, None where a node computes it or it is none."""
        constants = self._layout.constants
        array = constants.array(name)
        if array is None:
            return None
        low = self._names(f"{PREFIX}/weight/{constants.source(name)}/{self._low.name}")
        if low in self._added:
            return low
        if array.nbytes > INLINE_BYTES:
            tensor = onnx.TensorProto(name=low, data_type=self._low.onnx_type, dims=array.shape)
            make_stub(tensor)
            self._weights[low] = TypedWeight(source=array, dtype=self._low.numpy_type)
        else:
            tensor = onnx.numpy_helper.from_array(converted(array, self._low.numpy_type), low)
        self._added[low] = tensor
        return low

    def _guard(self, layer: str, source: str) -> str:
        """Append an addition of zero to the FP32 tensor `source`; return its result."""
        zero = self._names(f"{PREFIX}/guard/zero")
        if zero not in self._added:
            self._added[zero] = helper.make_tensor(zero, _FLOAT, [], [0.0])
        out = self._names(f"{PREFIX}/guard/{layer}")
        self._nodes.append(helper.make_node("Add", [source, zero], [out], name=out))
        return out

    def _without_unread_constants(self) -> list[onnx.NodeProto]:
        """Return the nodes but for constants that nobody reads now that low copies exist."""
        constant = {
            layer.name
            for layer in self._model.table.layers
            if layer.exclusion is Exclusion.CONSTANT
        }
        read = set(self._layout.public)
        kept = []
        for node in reversed(self._nodes):
            if node.name not in constant or read.intersection(node.output):
                kept.append(node)
                read.update(node.input)
        return kept[::-1]

    def _retype(self, graph: onnx.GraphProto) -> None:
        """Tell the new types of tensors whose types the file tells; forget those that are gone."""
        made = {name for node in graph.node for name in node.output}
        told = []
        for value in graph.value_info:
            if value.name in self._placement.tensors and value.name not in self._layout.public:
                value.type.tensor_type.elem_type = self._low.onnx_type
            if value.name in made:
                told.append(value)
        del graph.value_info[:]
        graph.value_info.extend(told)
