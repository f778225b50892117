"""A graph that shows tensors from its inside as outputs."""

from collections.abc import Iterable

import onnx


def showing(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy of the model with these FP32 tensors among its outputs, each once."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    present = {value.name for value in (*shown.graph.output, *shown.graph.input)}
    shown.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in dict.fromkeys(names)
        if name not in present
    )
    return shown
