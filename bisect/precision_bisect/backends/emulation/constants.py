"""Constants of a model that are computed by nodes, as weights.

A `Constant` node, or a chain of nodes over constants, is a weight to whoever reads it: rounded
with the layer that reads it, once, rather than at every trial.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.layer_table import Exclusion
from precision_bisect.model.load import Model
from precision_bisect.ort import Session


def folded_constants(
    model: Model, nodes: Sequence[onnx.NodeProto], wanted: set[str]
) -> dict[str, NDArray[np.generic]]:
    """Return the values of the `wanted` outputs of `nodes`, which read nothing but constants.

    Raises ModelError when ONNX Runtime cannot load them or run them.
    """
    if not wanted:
        return {}
    needed, chain = set(wanted), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            chain.append(node)
            needed.update(node.input)
    graph = onnx.GraphProto(name="constants")
    graph.node.extend(reversed(chain))
    held = [tensor for tensor in model.proto.graph.initializer if tensor.name in needed]
    graph.initializer.extend(held)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted))
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=graph)
    proto.opset_import.extend(model.proto.opset_import)
    weights = {t.name: model.weights[t.name] for t in held if t.name in model.weights}
    return Session(proto, weights, threads=1).run({})


def constant_outputs(model: Model) -> set[str]:
    """Return the FP32 tensors that nodes compute from constants only."""
    return {
        name
        for layer in model.table.layers
        if layer.exclusion is Exclusion.CONSTANT
        for name in layer.outputs
        if model.elem_types.get(name) == onnx.TensorProto.FLOAT
    }
