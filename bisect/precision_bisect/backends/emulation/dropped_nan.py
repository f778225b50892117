"""NaN that ONNX Runtime drops, and a target may keep: outputs of the emulator's graph count it.

A plan must not pass because of it. MaxPool and ReduceMax lose a NaN by its position, comparisons
and casts to integers make a number of it. An engine that keeps it gives NaN, or another number.
What a Where leaves out, and what IsNaN was asked about, is dropped by the model itself, on every
engine.
"""

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper

from precision_bisect.backends.emulation.snippets import SHORT_PREFIX, switch_node
from precision_bisect.backends.emulation.switched import SwitchedGraph
from precision_bisect.graphs.graph import attribute, opset, refill
from precision_bisect.graphs.load import Model

_FLOAT, _BOOL, _INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64
_INTEGERS = frozenset(
    kind for name, kind in onnx.TensorProto.DataType.items() if name.startswith(("INT", "UINT"))
)
_FIRST, _BOTH = (0,), (0, 1)
_CASTS, _SCATTERS = ("Cast", "CastLike"), ("ScatterElements", "ScatterND")
DROPPING: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "MaxRoiPool", "ReduceMax", "ReduceMin"), _FIRST),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK", "Hardmax", "Shrink", "ThresholdedRelu"), _FIRST),
    **dict.fromkeys((*_CASTS, "QuantizeLinear", "DynamicQuantizeLinear", "RoiAlign"), _FIRST),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _BOTH),
    "NonMaxSuppression": _BOTH,
    "GridSample": (1,),
    "Clip": (1, 2),
    **dict.fromkeys(_SCATTERS, (0, 2)),
}
"""The inputs in which each operator may lose a NaN, as seen of ONNX Runtime 1.32 on a CPU."""
# The first opset that has IsNaN.
_LOWEST_OPSET = 9


def watch_dropped(graph: SwitchedGraph, model: Model) -> Mapping[str, str]:
    """Add outputs that count the NaN which operators of the main graph may drop.

    Returns the operator's node by the name of each output. A sum tells whether there is any: the
    If that counts them runs only then. An operator that is there in two versions is not watched.
    """
    proto = graph.proto
    if opset(proto) < _LOWEST_OPSET:
        return {}
    float_tensors = {name for name, kind in model.elem_types.items() if kind == _FLOAT}
    # A NaN in a constant is the file's, not a plan's.
    floats = float_tensors.union(graph.raw.values()) - {
        tensor.name for tensor in proto.graph.initializer
    }
    watched: dict[str, str] = {}
    counted: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        for name in _losing(node, model.elem_types):
            if name not in counted and (name in floats or name.startswith(SHORT_PREFIX)):
                counted.add(name)
                count = f"precision_bisect/nan/{len(watched)}"
                nodes.extend(_counting(name, count, infinite=node.op_type in _CASTS))
                watched[count] = node.name or node.output[0]
        nodes.append(node)
    refill(proto.graph.node, nodes)
    proto.graph.output.extend(helper.make_tensor_value_info(name, _INT64, []) for name in watched)
    return watched


def _losing(node: onnx.NodeProto, elem_types: Mapping[str, int]) -> Iterator[str]:
    """Yield the inputs of a node in which a NaN may be lost."""
    places = DROPPING.get(node.op_type, ())
    if node.domain not in ("", "ai.onnx") or not (node.name and places):
        return
    mode, reduction = attribute(node, "mode"), attribute(node, "reduction")
    keeps = {
        "Cast": (target := attribute(node, "to")) is None or target.i not in _INTEGERS,
        "CastLike": elem_types.get(node.input[-1]) not in _INTEGERS,
        "RoiAlign": mode is None or mode.s != b"max",
        **dict.fromkeys(_SCATTERS, reduction is None or reduction.s not in (b"max", b"min")),
    }
    if keeps.get(node.op_type, False):
        return
    yield from (node.input[i] for i in places if i < len(node.input) and node.input[i])


def _counting(name: str, count: str, *, infinite: bool) -> list[onnx.NodeProto]:
    """Return the nodes that count the NaN of a tensor, and the `infinite` values if they are too.

    An integer of infinity is another number on each engine.
    """
    tag = f"{SHORT_PREFIX}nan/{count.rpartition('/')[2]}"
    # Infinity less infinity is NaN, of a finite number it is 0.
    less = [helper.make_node("Sub", [f"{tag}/sum"] * 2, [f"{tag}/less"])] if infinite else []
    tested = f"{tag}/less" if infinite else f"{tag}/sum"
    of = f"{tag}/apart" if infinite else name
    apart = [helper.make_node("Sub", [name, name], [of])] if infinite else []
    several = [
        *apart,
        helper.make_node("IsNaN", [of], [f"{tag}/where"]),
        helper.make_node("Cast", [f"{tag}/where"], [f"{tag}/ones"], to=_INT64),
        helper.make_node("ReduceSum", [f"{tag}/ones"], [f"{tag}/several"], keepdims=0),
    ]
    none = helper.make_node(
        "Constant", [], [f"{tag}/none"], value=helper.make_tensor("", _INT64, [], [0])
    )
    return [
        helper.make_node("ReduceSum", [name], [f"{tag}/sum"], keepdims=0),
        *less,
        helper.make_node("IsNaN", [tested], [f"{tag}/any"]),
        switch_node(
            f"{tag}/any", {count: _INT64}, (several, [f"{tag}/several"]), ([none], [f"{tag}/none"])
        ),
    ]
