"""Graphs that mix FP16 or BF16 with FP32: the same graph with every float in FP32.

ONNX Runtime's CPU provider computes FP16-typed operators in FP32 without saying so, so nothing
there can judge a graph with such types. Widening makes it explicit: the reference computes
everything in FP32, and the emulator rounds exactly the tensors that the file declares in a 16-bit
type.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from precision_bisect.graphs.graph import HALF_TYPES, all_graphs, copied, refill, subgraphs
from precision_bisect.graphs.weights import Weights

_FLOAT = onnx.TensorProto.FLOAT
_TYPE_ATTRIBUTES = frozenset(("to", "dtype", "output_dtype", "stash_type"))


def round_trip(source: str, out: str, low_type: int) -> list[onnx.NodeProto]:
    """Return the two Casts that round `source` to `low_type` and give it back as FP32.

    ONNX Runtime removes no explicit round trip at any optimisation level; `self_test` checks it.
    """
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
    copy = copied(node)
    for inner in subgraphs(copy):
        nodes = [n for old in inner.node for n in rounded_where_declared(old, declared, marker)]
        refill(inner.node, nodes)
    rounded = []
    for i, name in enumerate(node.output):
        if name in declared:
            copy.output[i] = f"{marker}/{name}"
            rounded += round_trip(copy.output[i], name, declared[name])
    return [copy, *rounded]


def declared_low(elem_types: Mapping[str, int]) -> dict[str, int]:
    """Return the tensors of a 16-bit float type, with that type."""
    return {name: kind for name, kind in elem_types.items() if kind in HALF_TYPES}


def in_fp32(proto: onnx.ModelProto, weights: Weights) -> tuple[onnx.ModelProto, Weights]:
    """Return copies with FLOAT for every FLOAT16 and BFLOAT16; other weights are shared."""
    model, weights = onnx.ModelProto(), dict(weights)
    model.CopyFrom(proto)
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_type in HALF_TYPES and tensor.name in weights:
                tensor.data_type = _FLOAT
                weights[tensor.name] = weights[tensor.name].astype(np.float32)
            else:
                _widen_tensor(tensor)
        for value in (*graph.input, *graph.output):
            _widen_type(value.type)
        # Types between inputs and outputs are inferred anew from the widened ones.
        del graph.value_info[:]
        for node in graph.node:
            for attribute in node.attribute:
                _widen_attribute(attribute)
    return model, weights


def _widen_attribute(attribute: onnx.AttributeProto) -> None:
    for tensor in attribute.tensors:
        _widen_tensor(tensor)
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    if attribute.HasField("tp"):
        _widen_type(attribute.tp)
    if attribute.name in _TYPE_ATTRIBUTES and attribute.i in HALF_TYPES:
        attribute.i = _FLOAT


def _widen_type(kind: onnx.TypeProto) -> None:
    """Widen a type, also one inside a sequence or an optional."""
    what = kind.WhichOneof("value")
    if what in ("sequence_type", "optional_type"):
        _widen_type(getattr(kind, what).elem_type)
    elif what == "tensor_type" and kind.tensor_type.elem_type in HALF_TYPES:
        kind.tensor_type.elem_type = _FLOAT


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALF_TYPES:
        values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
