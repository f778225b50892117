"""A model at a newer opset, for low types that its own opset does not know."""

from dataclasses import replace

import onnx
import onnx.version_converter

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import Names, opset, subgraphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import infer_elem_types

_NOT_CONVERTED = ("Hardmax",)
"""Operators whose meaning changed at opset 13, which onnx's converter does not know."""


def hint_to_export(lowest: int) -> str:
    """Return what to do about a model of too old an opset."""
    return f"export it at opset {lowest} or newer, or search for fp16"


def at_least_opset(model: Model, lowest: int, needing: str = "bfloat16") -> Model:
    """Return the model itself, or converted to opset `lowest`, which `needing` needs.

    Raises ModelError if onnx cannot convert it, or if the conversion would lose a layer or change
    the meaning of nodes inside a subgraph (onnx leaves those as they are).
    """
    have = opset(model.proto)
    if not 0 < have < lowest:
        return model
    hint = hint_to_export(lowest)
    what = f"the model has opset {have}, and {needing} needs {lowest}"
    # The converter leaves the bodies of If, Loop and Scan at the old opset, and says nothing.
    if any(True for node in model.proto.graph.node for _ in subgraphs(node)):
        raise ModelError(f"{what}; onnx cannot convert models with subgraphs", hint)
    if any(node.op_type in _NOT_CONVERTED for node in model.proto.graph.node):
        raise ModelError(f"{what}; onnx converts {', '.join(_NOT_CONVERTED)} wrongly", hint)
    try:
        proto = onnx.version_converter.convert_version(model.proto, lowest)
    except Exception as error:  # the converter raises what its C++ code throws
        text = " ".join(str(error).split())
        raise ModelError(f"{what}; onnx cannot convert it: {text}", hint) from error
    # A layer that the converter replaced would be another one to the ledger.
    outputs = {node.name: tuple(n for n in node.output if n) for node in proto.graph.node}
    for layer in model.table.candidates:
        if outputs.get(layer.name) != layer.outputs:
            raise ModelError(f"{what}; converting it would lose layer {layer.name!r}", hint)
    # The converter leaves the nodes nameless that it adds, and forgets what the exporter has said.
    names = Names(proto.graph)
    told = {node.name: node.metadata_props for node in model.proto.graph.node}
    for node in proto.graph.node:
        node.metadata_props.extend(told.get(node.name, ()))
        node.name = node.name or names(f"node_of_{node.output[0]}")
    return replace(model, proto=proto, elem_types=infer_elem_types(proto, model.weights))
