"""Quantized biases: int32 constants behind a DequantizeLinear, which TensorRT does not take.

ONNX Runtime's quantizer writes them. The FP32 constant that they stand for is stored in their
place; other runtimes compute the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import attribute, captured
from precision_bisect.graphs.load import Model


def with_float_biases(model: Model) -> Model:
    """Return the model with FP32 constants for dequantized int32 ones; itself if it has none."""
    tensors = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    found = [node for node in model.proto.graph.node if _is_bias(node, tensors)]
    if not found:
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    names = {node.output[0] for node in found}
    nodes = [node for node in proto.graph.node if names.isdisjoint(node.output)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    # Others, subgraphs too, may read the int32 constants as well; then they stay.
    read = {name for node in nodes for name in (*node.input, *captured(node))}
    left = {name for node in found for name in node.input} - read
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in left]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.initializer.extend(
        numpy_helper.from_array(_dequantized(node, model, tensors), node.output[0])
        for node in found
    )
    return replace(model, proto=proto)


def _is_bias(node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> bool:
    if node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return False
    read = [name for name in node.input if name]
    if not all(name in tensors for name in read):
        return False
    values, scale = tensors[read[0]], tensors[read[1]]
    return (
        values.data_type == onnx.TensorProto.INT32
        and scale.data_type == onnx.TensorProto.FLOAT
        and len(scale.dims) <= 1
    )


def _dequantized(
    node: onnx.NodeProto, model: Model, tensors: Mapping[str, onnx.TensorProto]
) -> NDArray[np.float32]:
    """Return the values times their scale, which may be one per channel."""
    values, scale, *zero = (_values(model, tensors[name]) for name in node.input if name)
    given = attribute(node, "axis")
    shape = [1] * values.ndim
    if scale.size > 1:
        # Axis 1 is DequantizeLinear's default.
        axis = 1 if given is None else given.i
        if not -values.ndim <= axis < values.ndim or values.shape[axis] != scale.size:
            raise ModelError(
                f"node {node.name!r} has {scale.size} scales along axis {axis}, and its input has "
                f"the shape {values.shape}",
                "export the model again",
            )
        shape[axis] = scale.size
    offsets = [each.reshape(shape if each.size > 1 else [1] * values.ndim) for each in zero]
    above = values - offsets[0] if offsets else values
    return np.asarray(above.astype(np.float32) * scale.reshape(shape), np.float32)


def _values(model: Model, tensor: onnx.TensorProto) -> NDArray[Any]:
    held: NDArray[Any] | None = model.weights.get(tensor.name)
    return numpy_helper.to_array(tensor) if held is None else held
