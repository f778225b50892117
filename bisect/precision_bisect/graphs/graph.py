"""Small questions about ONNX graphs that several rooms ask."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

HALF_TYPES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
RANDOM = frozenset(
    (
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    )
)
"""Standard operators that draw random numbers; Dropout does in training mode."""


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the node's attributes, not deeper."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def operators(graph: onnx.GraphProto) -> set[str]:
    """Return the ONNX operators that the graph and every graph inside it use."""
    nodes = (node for inner in all_graphs(graph) for node in inner.node)
    return {node.op_type for node in nodes if node.domain in ("", "ai.onnx")}


def captured(node: onnx.NodeProto) -> set[str]:
    """Return every tensor name that the node's subgraphs mention, outer ones among them."""
    names: set[str] = set()
    for inner in subgraphs(node):
        for graph in all_graphs(inner):
            names.update(output.name for output in graph.output)
            for inner_node in graph.node:
                names.update(name for name in inner_node.input if name)
    return names


def attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """Return the node's attribute of that name, or None."""
    return next((a for a in node.attribute if a.name == name), None)


def constant_of(node: onnx.NodeProto) -> NDArray[Any] | None:
    """Return the numbers of a Constant node; None where it holds none, and for other nodes."""
    if node.op_type != "Constant":
        return None
    for kind in ("value_float", "value_floats", "value_int", "value_ints"):
        if found := attribute(node, kind):
            return np.asarray(onnx.helper.get_attribute_value(found))
    tensor = attribute(node, "value")
    return None if tensor is None else onnx.numpy_helper.to_array(tensor.t)


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the model's opset version for a domain, 0 where it imports none."""
    aliases = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return max((o.version for o in model.opset_import if o.domain in aliases), default=0)
