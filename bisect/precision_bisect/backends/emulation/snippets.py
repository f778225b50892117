"""Pieces of ONNX graph that the switched graph is made of."""

from collections.abc import Sequence

import onnx
from onnx import helper

from precision_bisect.model.graph import subgraphs

Branch = tuple[list[onnx.NodeProto], list[str]]
"""The nodes of a branch and the names of its outputs."""


def round_trip(source: str, out: str, low_type: int) -> list[onnx.NodeProto]:
    """Return the two Casts that round `source` to `low_type` and give it back as FP32."""
    low = f"{out}/16bit"
    return [
        helper.make_node("Cast", [source], [low], to=low_type),
        helper.make_node("Cast", [low], [out], to=onnx.TensorProto.FLOAT),
    ]


def switch_node(flag: str, kinds: dict[str, int], low: Branch, high: Branch) -> onnx.NodeProto:
    """Return the If that runs `low` where the flag is on; `kinds` are its outputs' types."""
    then_graph, else_graph = (
        helper.make_graph(
            nodes,
            name,
            [],
            [
                helper.make_tensor_value_info(out, kind, None)
                for out, kind in zip(outs, kinds.values(), strict=True)
            ],
        )
        for name, (nodes, outs) in (("low", low), ("high", high))
    )
    return helper.make_node(
        "If", [flag], list(kinds), then_branch=then_graph, else_branch=else_graph
    )


def split_flags(flags: str, names: Sequence[str], opset: int) -> onnx.NodeProto:
    """Return the node that splits the input `flags` into one boolean per name."""
    node = helper.make_node("Split", [flags], names, axis=0)
    if opset >= 18:
        node.attribute.append(helper.make_attribute("num_outputs", len(names)))
    return node


def rounded_where_declared(
    node: onnx.NodeProto, declared: dict[str, int], marker: str
) -> list[onnx.NodeProto]:
    """Return a copy of the node whose outputs are rounded to the types that the file declares.

    The nodes inside its subgraphs are treated in the same way.
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for inner in subgraphs(copy):
        nodes = [n for old in inner.node for n in rounded_where_declared(old, declared, marker)]
        del inner.node[:]
        inner.node.extend(nodes)
    rounded = []
    for i, name in enumerate(node.output):
        if name in declared:
            copy.output[i] = f"{marker}/{name}"
            rounded += round_trip(copy.output[i], name, declared[name])
    return [copy, *rounded]
