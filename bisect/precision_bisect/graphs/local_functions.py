"""Local functions in the form in which `onnx.inliner` puts them in place of their calls."""

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

import onnx

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import copied, inner_nodes, opset, refill
from precision_bisect.graphs.soundness import PROTOBUF_LIMIT

# Operators that became others by what a version added: its default is not what was done before.
_CHANGED = frozenset(("GroupNormalization", "RoiAlign", "Split"))

_Id = tuple[str, str, str]


def ready_to_inline(proto: onnx.ModelProto) -> None:
    """Bring local functions into the form that `onnx.inliner` puts in place, in place.

    It forgets a function's own defaults: an attribute that refers to one is dropped, and the
    operator's default counts instead (onnx 1.23). It leaves functions of another opset as they
    are. Raises ModelError for one whose operators are others at the model's opset, and for
    defaults that are too large together.
    """
    functions: dict[_Id, onnx.FunctionProto] = {
        (f.domain, f.name, f.overload): f for f in proto.functions
    }
    sizes = {name: sum(a.ByteSize() for a in f.attribute_proto) for name, f in functions.items()}
    handed_on = {name: _handed_on(f, functions) for name, f in functions.items()}
    added, version = 0, opset(proto)
    bodies = [proto.graph.node, *(f.node for f in proto.functions)]
    # What `_without` makes joins while it is walked.
    for node in (node for body in bodies for node in _all_of(body)):
        function = functions.get(called := (node.domain, node.op_type, node.overload))
        if function is None:
            continue
        if version:
            _to_opset(function, version)
        added += sizes[called]
        present = {"", *(attribute.name for attribute in node.attribute)}
        absent = {*function.attribute} - present
        # An inner function's own default counts for what is absent, by this call alone.
        if not absent.isdisjoint(handed_on[called]):
            node.op_type = f"{function.name}/without/{'/'.join(sorted(absent))}"
            variant = (node.domain, node.op_type, node.overload)
            if variant not in functions:
                proto.functions.append(_without(function, absent, node.op_type))
                functions[variant] = proto.functions[-1]
                bodies.append(functions[variant].node)
                sizes[variant], handed_on[variant] = sizes[called], handed_on[called] - absent
                added += functions[variant].ByteSize()
        if added > PROTOBUF_LIMIT:
            raise ModelError(
                f"the defaults of local functions come to over {PROTOBUF_LIMIT} bytes",
                "export without functions",
            )
        node.attribute.extend(a for a in function.attribute_proto if a.name not in present)


def _all_of(body: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those inside them."""
    return (node for outer in body for node in (outer, *inner_nodes(outer)))


def _handed_on(function: onnx.FunctionProto, functions: Container[_Id]) -> set[str]:
    """Return the attributes of a function that it hands on to another one."""
    return {
        attribute.ref_attr_name
        for node in _all_of(function.node)
        if (node.domain, node.op_type, node.overload) in functions
        for attribute in node.attribute
    }


def _without(function: onnx.FunctionProto, absent: set[str], name: str) -> onnx.FunctionProto:
    """Return a function of another name, as a call has it that leaves these attributes out."""
    variant = copied(function)
    variant.name = name
    refill(variant.attribute, [own for own in function.attribute if own not in absent])
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
    # BatchNormalization gave five outputs before opset 14, and its first one is as before.
    made = len(node.output)
    return (
        before.attributes.items() <= after.attributes.items()
        and [*before.inputs] == [*after.inputs][: len(before.inputs)]
        and before.outputs[:made] == after.outputs[:made]
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
        # Opset 14 renamed those of BatchNormalization, no more.
        {formal.name.removeprefix("input_"): formal.option for formal in schema.inputs},
        [formal.name for formal in schema.outputs],
    )
