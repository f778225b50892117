"""Round trips of FP32 values to a 16-bit type, written into a graph.

ONNX Runtime removes no explicit round trip at any optimisation level; `self_test` checks it.
"""

import onnx
from onnx import helper

from precision_bisect.graphs.graph import subgraphs


def round_trip(source: str, out: str, low_type: int) -> list[onnx.NodeProto]:
    """Return the two Casts that round `source` to `low_type` and give it back as FP32."""
    low = f"{out}/16bit"
    return [
        helper.make_node("Cast", [source], [low], to=low_type),
        helper.make_node("Cast", [low], [out], to=onnx.TensorProto.FLOAT),
    ]


def rounded_where_declared(
    node: onnx.NodeProto, declared: dict[str, int], marker: str
) -> list[onnx.NodeProto]:
    """Return a copy of the node whose outputs are rounded to the types that the file declares.

    Nodes inside its subgraphs are treated in the same way.
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
