"""One factor per layer, for its value before it is rounded: another draw of rounding.

Inputs that are all integers cannot be changed a little; a factor of 1 +- 1e-6 on each layer does
the same to rounding.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from precision_bisect.graphs.graph import refill
from precision_bisect.graphs.load import Model
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.layer_table import LayerName

_FLOAT = onnx.TensorProto.FLOAT


def take_factors(proto: onnx.ModelProto, model: Model, raw: Mapping[str, str]) -> None:
    """Give the graph the input FACTORS, shape (layers,), and multiply each layer's outputs by it.

    `raw` has the name of each output before it is stored, by its name in the model.
    """
    graph = proto.graph
    index = {name: i for i, name in enumerate(model.table.names)}
    layer_of = {
        raw.get(output, output): index[LayerName(node.name)]
        for node in model.proto.graph.node
        if LayerName(node.name) in index
        for output in node.output
        if model.elem_types.get(output) == _FLOAT
    }
    factors = [f"precision_bisect/factor/{i}" for i in range(len(index))]
    nodes = []
    for i, factor in enumerate(factors):
        # A scalar leaves the shape of the other operand as it is.
        place = onnx.numpy_helper.from_array(np.array(i), f"{factor}/place")
        graph.initializer.append(place)
        nodes.append(helper.make_node("Gather", [FACTORS, place.name], [factor]))
    for node in graph.node:
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in layer_of:
                node.output[i] = f"{name}/exact"
                operands = [node.output[i], factors[layer_of[name]]]
                nodes.append(helper.make_node("Mul", operands, [name]))
    refill(graph.node, nodes)
    graph.input.append(helper.make_tensor_value_info(FACTORS, _FLOAT, [len(index)]))
