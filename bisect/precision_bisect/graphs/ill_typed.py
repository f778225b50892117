"""Nodes whose inputs and outputs have types that their operator does not take together.

Exporters under autocast write them: a LayerNormalization of FP16 values with an FP32 scale, a Conv
with FP32 weights. ONNX's plain checker does not look, engines refuse the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from precision_bisect.graphs.graph import all_graphs, opset
from precision_bisect.graphs.types import BY_ORT_NAME, ElemTypes, formals


@dataclass(frozen=True, slots=True, kw_only=True)
class IllTyped:
    """A node, with two tensors whose types differ, or one whose type its operator does not take.

    `tensors` has their ONNX element types by name.
    """

    node: str
    op_type: str
    tensors: Mapping[str, int]

    def __str__(self) -> str:
        kinds = (
            f"{name!r} in {onnx.TensorProto.DataType.Name(kind)}"
            for name, kind in self.tensors.items()
        )
        return f"node {self.node!r} ({self.op_type}) has {' and '.join(kinds)}"


def ill_typed_nodes(proto: onnx.ModelProto, types: ElemTypes) -> Iterator[IllTyped]:
    """Yield the nodes of standard operators that are ill-typed, inner ones too, in order.

    `types` are those of a file as it is. Where they are not known nothing is said.
    """
    version = opset(proto)
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            if node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type, version):
                fault = _fault(node, onnx.defs.get_schema(node.op_type, version), types)
                if fault is not None:
                    yield fault


def _fault(node: onnx.NodeProto, schema: Any, types: ElemTypes) -> IllTyped | None:
    allowed = {
        constraint.type_param_str: {BY_ORT_NAME.get(kind) for kind in constraint.allowed_type_strs}
        for constraint in schema.type_constraints
    }
    first: dict[str, str] = {}
    sides = (node.input, schema.inputs), (node.output, schema.outputs)
    for name, formal in (pair for n, s in sides for pair in zip(n, formals(s), strict=False)):
        if name not in types:
            continue
        kinds = allowed.get(formal.type_str, {BY_ORT_NAME.get(formal.type_str)})
        other = first.setdefault(formal.type_str, name)
        if types[other] != types[name] or types[name] not in kinds:
            tensors = dict.fromkeys((other, name) if types[other] != types[name] else (name,))
            return IllTyped(
                node=node.name,
                op_type=node.op_type,
                tensors={tensor: types[tensor] for tensor in tensors},
            )
    return None
