"""An exported model of FP16 tensors as one of FP32 tensors that hold FP16 values.

ONNX Runtime's CPU provider computes FP16 graphs in FP32 and stores FP32 between them. Here each
tensor that the graph declares as FP16 is cast to FP16 and back where it is stored. Inside an
operator sums stay FP32, as on tensor cores. Nothing of precision_bisect is used.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx import numpy_helper as tensors
from onnx.inliner import inline_local_functions

LOW = TensorProto.FLOAT16
HIGH = TensorProto.FLOAT
TYPE_ATTRIBUTES = {"to", "dtype", "output_dtype", "stash_type"}

Types = Mapping[str, int]


class UnknownTypeError(ValueError):
    """Shape inference leaves a tensor without a type, so that nobody knows where it is rounded."""


def rounded(model: ModelProto, noise: float = 0.0) -> ModelProto:
    """Return the FP32 model whose tensors are rounded where the model's own are FP16.

    `noise` is a standard deviation, relative: each result is multiplied by 1 + noise · N(0, 1)
    before it is rounded. Inputs in FP16 become FP32 inputs; feed them rounded values.

    Raises UnknownTypeError.
    """
    model = onnx.shape_inference.infer_shapes(inline_local_functions(model))
    rewriting = _Rewriting(noise)
    rewriting.graph(model.graph, {})
    return model


class _Rewriting:
    """Rewrites graphs in place; keeps count of the names it makes."""

    def __init__(self, noise: float) -> None:
        self._noise = noise
        self._made = 0

    def graph(self, graph: GraphProto, outer: Types) -> None:
        """Rewrite a graph and those inside it."""
        types = {**outer, **_types(graph)}
        nodes = [made for node in graph.node for made in self._node(node, types)]
        del graph.node[:]
        graph.node.extend(nodes)
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == LOW:
                value.type.tensor_type.elem_type = HIGH
        for tensor in graph.initializer:
            _widen(tensor)

    def _node(self, node: NodeProto, types: Types) -> Iterator[NodeProto]:
        """Yield the node in FP32, and what rounds each of its FP16 results."""
        stored: list[NodeProto] = []
        for place, name in enumerate(node.output):
            if name and _type(name, node, types) == LOW:
                node.output[place] = self._name()
                stored += self._store(node.output[place], name)
        for attribute in node.attribute:
            self._attribute(attribute, types)
        yield node
        yield from stored

    def _store(self, raw: str, name: str) -> Iterator[NodeProto]:
        """Yield the nodes that round a result, after what noise there is."""
        if self._noise:
            factor, noisy = self._name(), self._name()
            yield helper.make_node(
                "RandomNormalLike", [raw], [factor], mean=1.0, scale=self._noise, dtype=HIGH
            )
            yield helper.make_node("Mul", [raw, factor], [noisy])
            raw = noisy
        low = self._name()
        yield helper.make_node("Cast", [raw], [low], to=LOW)
        yield helper.make_node("Cast", [low], [name], to=HIGH)

    def _attribute(self, attribute: AttributeProto, types: Types) -> None:
        """Turn FP16 into FP32 in an attribute: a type, a tensor, a graph."""
        if attribute.name in TYPE_ATTRIBUTES and attribute.i == LOW:
            attribute.i = HIGH
        if attribute.type == AttributeProto.TENSOR:
            _widen(attribute.t)
        if attribute.type == AttributeProto.GRAPH:
            self.graph(attribute.g, types)

    def _name(self) -> str:
        self._made += 1
        return f"zoo/{self._made}"


def _types(graph: GraphProto) -> dict[str, int]:
    """Return the element types of the graph's tensors, as far as inference tells them."""
    values: Iterable[onnx.ValueInfoProto] = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _type(name: str, node: NodeProto, types: Types) -> int:
    """Return the type of a result."""
    if found := types.get(name):
        return found
    if not any(types.get(given) == LOW for given in node.input):
        return HIGH
    raise UnknownTypeError(f"{node.op_type} {node.name!r}: the type of {name!r} is unknown")


def _widen(tensor: TensorProto) -> None:
    """Make an FP16 tensor one of FP32 with the same values."""
    if tensor.data_type == LOW:
        values = np.asarray(tensors.to_array(tensor), np.float32)
        tensor.CopyFrom(tensors.from_array(values, tensor.name))
