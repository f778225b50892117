"""Which nodes are layers, and for the others why not.

The rules follow what TensorRT and trtexec leave alone when precisions are set: constants, shape
tensors, integer and boolean outputs, casts, quantization, control flow.
"""

from collections.abc import Mapping

import onnx

from precision_bisect.graphs.graph import RANDOM, attribute, subgraphs
from precision_bisect.graphs.types import ElemTypes
from precision_bisect.layer_table import Exclusion, Layer, LayerName, LayerTable, scope_of
from precision_bisect.machine.stopping import look_at_clock

FOLLOWERS = frozenset(
    (
        *("Reshape", "Transpose", "Slice", "Concat", "Gather", "GatherElements", "GatherND"),
        *("Split", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Identity", "Tile", "Pad"),
        *("DepthToSpace", "SpaceToDepth", "ReverseSequence", "Compress", "Dropout"),
        *("ScatterElements", "ScatterND", "Scatter"),
    )
)
"""Operators that move values without computing (Scatter* with a reduction do compute)."""

QUANTIZATION = frozenset(["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"])
CASTS = frozenset(("Cast", "CastLike", "BitCast"))
_SHAPE_SOURCES = frozenset(("Shape", "Size"))
# Operators that turn shapes into data: what follows them is no shape arithmetic.
_LEAVES_SHAPES = frozenset(("Range", "ConstantOfShape", "EyeLike", "Expand", "Tile", "OneHot"))


def layer_table(
    graph: onnx.GraphProto,
    elem_types: ElemTypes,
    named_in_model: Mapping[str, bool],
    modules: Mapping[str, str] | None = None,
) -> LayerTable:
    """Return the layer table of a graph whose node names are unique.

    `elem_types` maps tensor names to ONNX element types where they are known. `modules` are the
    nodes' by name, None where nothing but name scopes tells them. Raises Stopped.
    """
    constants = {tensor.name for tensor in graph.initializer}
    shapes: set[str] = set()
    layers = []
    for node in graph.node:
        look_at_clock()
        exclusion = _exclusion(node, constants, shapes, elem_types)
        # Nodes stand after what they read, so one pass suffices for both sets.
        if exclusion is Exclusion.CONSTANT:
            constants.update(node.output)
        if exclusion is Exclusion.SHAPE:
            shapes.update(node.output)
        tables = [layer_table(inner, elem_types, named_in_model) for inner in subgraphs(node)]
        body = tuple(layer for table in tables for layer in table.with_bodies)
        inside = sum(layer.exclusion is None for layer in body)
        layers.append(
            Layer(
                name=LayerName(node.name),
                op_type=node.op_type,
                domain=node.domain,
                outputs=tuple(name for name in node.output if name),
                named_in_model=named_in_model.get(node.name, False),
                exclusion=exclusion,
                detail=f"{inside} FP32 layers inside" if inside else "",
                body=body,
                module=scope_of(node.name) if modules is None else modules.get(node.name, ""),
            )
        )
    return LayerTable(tuple(layers))


def is_follower(node: onnx.NodeProto) -> bool:
    """Tell whether the node only moves values."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in FOLLOWERS:
        return False
    reduction = attribute(node, "reduction")
    return reduction is None or reduction.s in (b"", b"none")


def _exclusion(
    node: onnx.NodeProto, constants: set[str], shapes: set[str], elem_types: ElemTypes
) -> Exclusion | None:
    inputs = [name for name in node.input if name]
    by_operator = _by_operator(node)
    # Before the look at inputs: a Random node has none, and would count as constant.
    if by_operator in (Exclusion.CONTROL_FLOW, Exclusion.RANDOM):
        return by_operator
    if all(name in constants for name in inputs):
        return Exclusion.CONSTANT
    if _is_shape_arithmetic(node, inputs, constants, shapes):
        return Exclusion.SHAPE
    return by_operator or _by_type(node, elem_types)


def _by_operator(node: onnx.NodeProto) -> Exclusion | None:
    if any(True for _ in subgraphs(node)):
        return Exclusion.CONTROL_FLOW
    if node.domain not in ("", "ai.onnx"):
        return Exclusion.CUSTOM
    if node.op_type in RANDOM:
        return Exclusion.RANDOM
    if node.op_type in CASTS:
        return Exclusion.CAST
    if node.op_type in QUANTIZATION:
        return Exclusion.QUANTIZATION
    if node.op_type.startswith(("Sequence", "Optional", "SplitToSequence", "String", "Tfidf")):
        return Exclusion.NOT_TENSOR
    return None


def _is_shape_arithmetic(
    node: onnx.NodeProto, inputs: list[str], constants: set[str], shapes: set[str]
) -> bool:
    if node.op_type in _SHAPE_SOURCES:
        return True
    if node.op_type in _LEAVES_SHAPES:
        return False
    return all(name in constants or name in shapes for name in inputs)


def _by_type(node: onnx.NodeProto, elem_types: ElemTypes) -> Exclusion | None:
    outputs = [name for name in node.output if name]
    types = {elem_types.get(name, 0) for name in outputs}
    first = elem_types.get(outputs[0], 0) if outputs else 0
    if first == onnx.TensorProto.DOUBLE:
        return Exclusion.DOUBLE
    if onnx.TensorProto.FLOAT not in types:
        # A type that nobody could infer may hide a float; it is told apart in the table.
        return Exclusion.UNTYPED if 0 in types else Exclusion.NOT_FLOAT
    return Exclusion.FOLLOWER if is_follower(node) else None
