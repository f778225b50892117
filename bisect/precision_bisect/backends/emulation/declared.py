"""Types and shapes of tensors of the switched graph, by those that ONNX infers of the model."""

import onnx
from onnx import helper

from precision_bisect.backends.emulation.switched import SwitchedGraph
from precision_bisect.graphs.graph import copied, inferred, subgraphs
from precision_bisect.graphs.load import Model


class Declared:
    """Types and shapes of crossing tensors: ONNX Runtime chooses some kernels by shapes."""

    def __init__(self, graph: SwitchedGraph, model: Model) -> None:
        proto = copied(model.proto)
        # The file's own declarations of tensors in between may be wrong.
        del proto.graph.value_info[:]
        self._types = {value.name: value.type for value in inferred(proto).value_info}
        self._elem_types = model.elem_types
        # Convolutions are chosen by the number of channels.
        self._images = any("Conv" in n.op_type or "Pool" in n.op_type for n in proto.graph.node)
        self._stored = {raw: name for name, raw in graph.raw.items()}
        self._passed = {
            node.output[0]: inner.node[0].input[0]
            for node in graph.proto.graph.node
            for inner in subgraphs(node)
            if [part.op_type for part in inner.node] == ["Identity"]
        }

    def value(self, name: str) -> onnx.ValueInfoProto:
        """Return the declaration of a tensor of the switched graph."""
        in_model = self._in_model(name)
        if in_model in self._types:
            return onnx.ValueInfoProto(name=name, type=self._types[in_model])
        kind = self._elem_types.get(in_model, onnx.TensorProto.FLOAT)
        return helper.make_tensor_value_info(name, kind, None)

    def rank(self, name: str) -> int | None:
        """Return a tensor's number of dimensions, None where that is not known."""
        value_type = self._types.get(self._in_model(name))
        known = value_type is not None and value_type.tensor_type.HasField("shape")
        return len(value_type.tensor_type.shape.dim) if value_type and known else None

    def is_known(self, name: str) -> bool:
        """Tell whether a tensor's rank is known, and for images the number of channels."""
        if self.rank(name) is None:
            return False
        dims = self._types[self._in_model(name)].tensor_type.shape.dim
        return not self._images or len(dims) != 4 or dims[1].HasField("dim_value")

    def _in_model(self, name: str) -> str:
        """Return the tensor of the model that this name passes on or rounds."""
        while name not in self._elem_types and name in self._passed:
            name = self._passed[name]
        # Before its factor, a value has this suffix.
        name = name.removesuffix("/exact")
        return self._stored.get(name, name)
