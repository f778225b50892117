"""The shapes of a model's tensors for one set of inputs, as far as ONNX infers them."""

from collections.abc import Mapping
from contextlib import suppress

import onnx

from precision_bisect.graphs.load import Model

Shape = tuple[int, ...]


def tensor_shapes(model: Model, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shape of every tensor of the main graph whose dimensions are all known.

    `inputs` are the shapes that are fed, by name. Where ONNX's inference fails, only inputs and
    weights have one.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    # The shapes in the file hold for any input, and may be symbolic.
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for value in graph.input:
        if value.name in inputs:
            value.type.tensor_type.ClearField("shape")
            for size in inputs[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    with suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shape = _known(value)
        if shape is not None:
            found[value.name] = shape
    return found


def _known(value: onnx.ValueInfoProto) -> Shape | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)
