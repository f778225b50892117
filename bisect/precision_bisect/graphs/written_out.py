"""Operators that engines lack, in pieces: ONNX's own function stands in place of each.

Which these are, and from which opset on, is in `settings/written_out.json`, which
`benchmarks/engines/written_out.py` writes: TensorRT-RTX has no importer of them, or ONNX Runtime
cannot take them apart itself, and both take the pieces.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import onnx
from onnx import helper

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import (
    all_graphs,
    copied,
    inferred,
    inner_nodes,
    opset,
    refill,
)
from precision_bisect.graphs.soundness import PROTOBUF_LIMIT
from precision_bisect.settings.targets import written_out

_DOMAIN = "written_out"
# Operators that became others by what a version added: its default is not what was done before.
_CHANGED = frozenset(("GroupNormalization", "RoiAlign", "Split"))


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


def ready_to_inline(proto: onnx.ModelProto) -> None:
    """Bring local functions into the form that `onnx.inliner` puts in place, in place.

    It forgets a function's own defaults: an attribute that refers to one is dropped, and the
    operator's default counts instead (onnx 1.23). It leaves functions of another opset as they
    are. Raises ModelError for one whose operators are others at the model's opset, and for
    defaults that are too large together.
    """
    functions = {_identity(f): f for f in proto.functions}
    sizes = {name: sum(a.ByteSize() for a in f.attribute_proto) for name, f in functions.items()}
    added, version = 0, opset(proto)
    bodies = [proto.graph.node, *(f.node for f in proto.functions)]
    # Variants join while it is walked.
    for node in (node for body in bodies if functions for node in _all_of(body)):
        function = functions.get(called := (node.domain, node.op_type, node.overload))
        if function is None:
            continue
        if version:
            _to_opset(function, version)
        added += sizes[called]
        present = {"", *(attribute.name for attribute in node.attribute)}
        variant = _without(function, {*function.attribute} - present, functions)
        if variant is not None:
            node.op_type = variant.name
            if _identity(variant) not in functions:
                added += variant.ByteSize()
                proto.functions.append(variant)
                bodies.append(proto.functions[-1].node)
                functions[_identity(variant)] = proto.functions[-1]
                sizes[_identity(variant)] = sizes[called]
        if added > PROTOBUF_LIMIT:
            raise ModelError(
                f"the defaults of local functions come to over {PROTOBUF_LIMIT} bytes",
                "export without functions",
            )
        node.attribute.extend(a for a in function.attribute_proto if a.name not in present)


def _identity(function: onnx.FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def _all_of(body: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those inside them."""
    return (node for outer in body for node in (outer, *inner_nodes(outer)))


def _without(
    function: onnx.FunctionProto,
    absent: Collection[str],
    functions: Container[tuple[str, str, str]],
) -> onnx.FunctionProto | None:
    """Return a function as a call has it that leaves out these attributes without a default.

    None where it hands none of them on to another function, whose own defaults would count.
    """
    handed_on = {
        attribute.ref_attr_name
        for node in _all_of(function.node)
        if (node.domain, node.op_type, node.overload) in functions
        for attribute in node.attribute
    }
    if handed_on.isdisjoint(absent):
        return None
    variant = copied(function)
    variant.name = f"{function.name}/without/{'/'.join(sorted(absent))}"
    refill(variant.attribute, [name for name in function.attribute if name not in absent])
    for node in _all_of(variant.node):
        for attribute in [a for a in node.attribute if a.ref_attr_name in absent]:
            node.attribute.remove(attribute)
    return variant


def _to_opset(function: onnx.FunctionProto, version: int) -> None:
    """Declare a function at the model's opset, where its operators are the same."""
    for item in function.opset_import:
        if item.domain not in ("", "ai.onnx") or item.version == version:
            continue
        for node in _all_of(function.node):
            if node.domain in ("", "ai.onnx") and not _alike(node, item.version, version):
                raise ModelError(
                    f"the local function {function.name!r} is of opset {item.version}, the model "
                    f"of {version}, where {node.op_type} is another",
                    "export without functions, or all of one opset",
                )
        item.version = version


def _alike(node: onnx.NodeProto, declared: int, version: int) -> bool:
    """Tell whether a node is the same at another version, which may add what is optional."""
    before, after = _signature(node, declared), _signature(node, version)
    if before == after:
        return True
    if before is None or after is None or declared > version or node.op_type in _CHANGED:
        return False
    return (
        before.attributes.items() <= after.attributes.items()
        and [*before.inputs] == [*after.inputs][: len(before.inputs)]
        and before.outputs == after.outputs
    )


class _Signature(NamedTuple):
    """What an operator takes and gives at a version, types apart: defaults, options by name."""

    attributes: dict[str, str]
    inputs: dict[str, object]
    outputs: list[str]


def _signature(node: onnx.NodeProto, version: int) -> _Signature | None:
    """Return that of a node's operator, None where onnx knows none."""
    if not onnx.defs.has(node.op_type, version):
        return None
    schema = onnx.defs.get_schema(node.op_type, version)
    return _Signature(
        {name: str(a.default_value) for name, a in schema.attributes.items()},
        {formal.name: formal.option for formal in schema.inputs},
        [formal.name for formal in schema.outputs],
    )


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
