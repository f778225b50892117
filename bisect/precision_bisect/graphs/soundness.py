"""What the rest relies on of a model that nobody vouches for, checked before anything walks it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import all_graphs, inner_nodes, opset
from precision_bisect.machine.stopping import look_at_clock

LOWEST_OPSET = 9
MOST_NODES = 2**18
"""Nodes with all functions in place; the largest of real networks, unrolled ones, have a tenth."""
PROTOBUF_LIMIT = 2**31
"""Bytes with all functions in place: protobuf's own limit."""
# Levels of functions that call functions.
_DEEPEST = 64
_VERSIONS = range(1, 2**31)
_AGAIN = "export or copy the file again"
_DOMAINS = ("", "ai.onnx")

_Id = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Size:
    """What a function, or a graph, comes to with all functions in place."""

    nodes: int
    nbytes: int
    depth: int


def check_opsets(path: object, proto: onnx.ModelProto) -> None:
    """Raise ModelError for opset versions that no operator has."""
    imports = [*proto.opset_import, *(o for f in proto.functions for o in f.opset_import)]
    for item in imports:
        # Version 0 is what an exporter leaves that sets none; of other domains nothing is known.
        is_standard = item.domain in _DOMAINS
        if item.version not in _VERSIONS and (is_standard or item.version):
            raise ModelError(
                f"{path} has opset {item.version}{f' of {item.domain}' if item.domain else ''}, "
                "which there is not",
                _AGAIN,
            )
    version, newest = opset(proto), onnx.defs.onnx_opset_version()
    if 0 < version < LOWEST_OPSET:
        raise ModelError(
            f"{path} has opset {version}, older than {LOWEST_OPSET}",
            "convert it with onnx.version_converter or export it again",
        )
    if version > newest:
        raise ModelError(
            f"{path} has opset {version}, newer than {newest}, the newest that onnx "
            f"{onnx.__version__} knows",
            "update onnx and onnxruntime, or export it at an older opset",
        )


def check_expansion(proto: onnx.ModelProto) -> None:
    """Raise ModelError where calls of local functions come to more than can be put in place."""
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    if not functions:
        return
    sizes: dict[_Id, _Size] = {}
    whole = _expanded(proto.graph.node, functions, sizes, ())
    if whole.nodes > MOST_NODES or whole.nbytes > PROTOBUF_LIMIT:
        raise ModelError(
            f"the model's local functions come to {whole.nodes} nodes and {whole.nbytes} bytes, "
            f"and at most {MOST_NODES} and {PROTOBUF_LIMIT} are taken",
            "export without functions that call functions",
        )


def check_nodes(proto: onnx.ModelProto) -> None:
    """Raise ModelError for a standard operator with too few or too many inputs or outputs.

    The same for a graph that has no outputs: there is nothing to compare.
    """
    if not proto.graph.output:
        raise ModelError("the model has no outputs", "name what it computes as outputs")
    version = opset(proto)
    bounds: dict[str, tuple[int, int, int, int] | None] = {}
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            look_at_clock()
            # Of operators of others nothing is known here; their session refuses them.
            if node.domain not in _DOMAINS:
                continue
            if node.op_type not in bounds:
                bounds[node.op_type] = _bounds(node.op_type, version)
            bound = bounds[node.op_type]
            if bound is None:
                continue
            for what, count, least, most in (
                ("inputs", len(node.input), bound[0], bound[1]),
                ("outputs", len(node.output), bound[2], bound[3]),
            ):
                if not least <= count <= most:
                    raise ModelError(
                        f"node {node.name!r} has {count} {what}, and {node.op_type} takes "
                        f"{least if least == most else f'{least} to {most}'}",
                        _AGAIN,
                    )


def check_types(proto: onnx.ModelProto) -> None:
    """Raise ModelError for a tensor of an element type that there is not."""
    kinds = set(onnx.TensorProto.DataType.values())
    for graph in all_graphs(proto.graph):
        typed = [(tensor.name, tensor.data_type) for tensor in graph.initializer]
        for value in (*graph.input, *graph.output, *graph.value_info):
            typed.append((value.name, value.type.tensor_type.elem_type))
        for name, kind in typed:
            if kind not in kinds:
                raise ModelError(f"tensor {name!r} has the element type {kind}", _AGAIN)


def refuse_segments(tensors: Iterable[onnx.TensorProto]) -> None:
    """Raise ModelError for a tensor that is a part of another one: nothing reads those."""
    for tensor in tensors:
        if tensor.HasField("segment"):
            raise ModelError(f"weight {tensor.name!r} is a segment of a larger one", _AGAIN)


def _bounds(op_type: str, version: int) -> tuple[int, int, int, int] | None:
    """Return the least and most inputs and outputs; None for what onnx does not know."""
    if version < 1 or not onnx.defs.has(op_type, version):
        return None
    schema = onnx.defs.get_schema(op_type, version)
    if schema.deprecated:
        return None
    return schema.min_input, schema.max_input, schema.min_output, schema.max_output


def _expanded(
    nodes: Iterable[onnx.NodeProto],
    functions: Mapping[_Id, onnx.FunctionProto],
    sizes: dict[_Id, _Size],
    within: tuple[_Id, ...],
) -> _Size:
    """Return what nodes come to; `sizes` has the functions seen, `within` those around."""
    nodes_found = bytes_found = depth = 0
    calls: Counter[_Id] = Counter()
    for outer in nodes:
        bytes_found += outer.ByteSize()
        for node in (outer, *inner_nodes(outer)):
            called = (node.domain, node.op_type, node.overload)
            if called in functions:
                calls[called] += 1
            else:
                nodes_found += 1
    for called, times in calls.items():
        if called in within or len(within) >= _DEEPEST:
            raise ModelError(
                f"the model's local function {called[1]!r} calls itself, or too many call it",
                "export without functions",
            )
        # Each body is counted once, so that the count of what is nested takes no longer than the
        # file is long.
        if called not in sizes:
            body = functions[called].node
            sizes[called] = _expanded(body, functions, sizes, (*within, called))
        size = sizes[called]
        nodes_found += times * size.nodes
        bytes_found += times * size.nbytes
        depth = max(depth, size.depth + 1)
    if depth > _DEEPEST:
        raise ModelError("the model's local functions call each other too deep", "export without")
    return _Size(nodes_found, bytes_found, depth)
