"""Operators that engines lack, in pieces: ONNX's own function stands in place of each.

Which these are, and from which opset on, is in `settings/written_out.json`, which
`benchmarks/engines/written_out.py` writes: TensorRT-RTX has no importer of them, or ONNX Runtime
cannot take them apart itself, and both take the pieces.
"""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

import onnx
from onnx import helper

from precision_bisect.graphs.graph import all_graphs, copied, inferred, opset, refill
from precision_bisect.settings.targets import written_out

_DOMAIN = "written_out"


def lacking(proto: onnx.ModelProto, since: Mapping[str, int] | None = None) -> Counter[str]:
    """Count the operators of a model that engines lack.

    `since` has the first opset of each, that of the table unless it is given.
    """
    version = opset(proto)
    table = written_out()["operators"] if since is None else since
    used = Counter(
        node.op_type
        for graph in all_graphs(proto.graph)
        for node in graph.node
        if node.domain in ("", "ai.onnx")
    )
    return Counter({name: used[name] for name in used if table.get(name, version + 1) <= version})


def with_functions(proto: onnx.ModelProto, operators: Container[str]) -> onnx.ModelProto:
    """Return the model with local functions for these operators, or the model itself.

    A node whose function depends on types that ONNX cannot infer stays as it is.
    """
    version, types = opset(proto), _types(proto)
    written, functions = copied(proto), list[onnx.FunctionProto]()
    for graph in all_graphs(written.graph):
        for node in graph.node:
            if node.op_type not in operators or node.domain not in ("", "ai.onnx"):
                continue
            # A function of its own for each node: attributes and types make them differ.
            body = _function(node, version, types)
            if body is not None:
                body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(functions)}"
                node.domain, node.op_type = _DOMAIN, body.name
                functions.append(body)
    if not functions:
        return proto
    written.functions.extend(functions)
    written.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return written


def _types(proto: onnx.ModelProto) -> Mapping[str, onnx.TypeProto]:
    """Return the types of tensors, without those that are of two types in two bodies."""
    types: dict[str, onnx.TypeProto] = {"": onnx.TypeProto()}
    doubtful = set[str]()
    for graph in all_graphs(inferred(proto, data_prop=False)):
        typed = [(value.name, value.type) for value in (*graph.value_info, *graph.input)]
        typed += [
            (tensor.name, helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
            for tensor in graph.initializer
        ]
        for name, kind in typed:
            if types.setdefault(name, kind).tensor_type.elem_type != kind.tensor_type.elem_type:
                doubtful.add(name)
    return {name: kind for name, kind in types.items() if name not in doubtful}


def _function(
    node: onnx.NodeProto, version: int, types: Mapping[str, onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """Return ONNX's function for a node, which gets the defaults that the function refers to."""
    # onnx's stubs know nothing of functions.
    schema: Any = onnx.defs.get_schema(node.op_type, version)
    present = {attribute.name for attribute in node.attribute}
    node.attribute.extend(
        formal.default_value
        for name, formal in schema.attributes.items()
        if formal.default_value.name and name not in present
    )
    if schema.has_function:
        text = schema.get_function_with_opset_version(max(schema.function_opset_versions))
    elif all(name in types for name in node.input):
        # Not by onnx's inliner, which raises for optional inputs that are left out.
        text = schema.get_context_dependent_function_with_opset_version(
            max(schema.context_dependent_function_opset_versions),
            node.SerializeToString(),
            [types[name].SerializeToString() for name in node.input],
        )
    else:
        return None
    body = onnx.FunctionProto.FromString(text)
    if not body.node:
        return None
    # Some bodies name only the parameters that they use; all are of one opset with the model.
    refill(body.input, [formal.name for formal in schema.inputs])
    refill(body.output, [formal.name for formal in schema.outputs])
    refill(body.opset_import, [helper.make_opsetid("", version)])
    return body
