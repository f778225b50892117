"""A graph that shows tensors from its inside as outputs."""

from collections.abc import Iterable, Mapping

import onnx

_FLOAT = onnx.TensorProto.FLOAT
_ALL_FLOAT: Mapping[str, int] = {}


def showing(
    proto: onnx.ModelProto, names: Iterable[str], elem_types: Mapping[str, int] = _ALL_FLOAT
) -> onnx.ModelProto:
    """Return a copy of the model with these tensors among its outputs, each once.

    They are FP32 where `elem_types` has no other type for them.
    """
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    present = {value.name for value in (*shown.graph.output, *shown.graph.input)}
    shown.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, elem_types.get(name) or _FLOAT, None)
        for name in dict.fromkeys(names)
        if name not in present
    )
    return shown
