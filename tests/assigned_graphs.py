"""Forms of layers written into a graph: an oracle for the emulator that shares nothing with it."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.precisions import Form

_TYPES = {
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "fp8": TensorProto.FLOAT8E4M3FN,
}


class _Writer:
    """Writes a model node by node; every value that a layer reads is rounded for itself."""

    def __init__(self, model: Model, forms: Mapping[str, Form], scales: Scales) -> None:
        self.types = model.elem_types
        self.forms = forms
        self.scales = scales
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(model.proto)
        del self.proto.graph.node[:]
        for node in model.proto.graph.node:
            self.write(node)

    def write(self, node: onnx.NodeProto) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        form = self.forms.get(node.name)
        if form is None:
            self.proto.graph.node.append(copy)
            return
        for i, name in enumerate(node.input):
            if self.types[name] == TensorProto.FLOAT:
                value = name
                if form.quantized and i < 2:
                    value = self.quantized(name, f"{node.name}/8/{i}", form.quantized)
                copy.input[i] = self.cast(value, f"{node.name}/in/{i}", form.stored)
        copy.output[0] = f"{node.name}/out"
        self.proto.graph.node.append(copy)
        self.cast(copy.output[0], node.output[0], form.stored)

    def cast(self, name: str, out: str, stored: str) -> str:
        if stored == "fp32":
            self.add("Identity", [name], out)
            return out
        self.add("Cast", [name], f"{out}/16", to=_TYPES[stored])
        self.add("Cast", [f"{out}/16"], out, to=TensorProto.FLOAT)
        return out

    def quantized(self, name: str, out: str, kind: str) -> str:
        weight = self.scales.weights.get(name)
        values = self.scales.activations[name] if weight is None else weight.values
        axis = {} if weight is None or weight.axis is None else {"axis": weight.axis}
        scale = self.constant(f"{out}/scale", np.asarray(values, np.float32))
        zero = helper.make_tensor(
            f"{out}/zero", _TYPES[kind], np.shape(values), np.zeros(np.size(values))
        )
        self.proto.graph.initializer.append(zero)
        self.add("QuantizeLinear", [name, scale, zero.name], f"{out}/q", **axis)
        self.add("DequantizeLinear", [f"{out}/q", scale, zero.name], out, **axis)
        return out

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
        self.proto.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def add(self, op: str, inputs: list[str], out: str, **attributes: int) -> None:
        node = helper.make_node(op, inputs, [out])
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self.proto.graph.node.append(node)


def assigned_graph(model: Model, forms: Mapping[str, Form], scales: Scales) -> onnx.ModelProto:
    """Return the model in which the layers of these names compute in these forms.

    All nodes must have one output and compute, or move values.
    """
    return _Writer(model, forms, scales).proto


def run_as_written(
    proto: onnx.ModelProto, feed: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Run an FP32 graph with Q/DQ and Casts in ONNX Runtime, nothing of it optimized."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))
