#!/bin/sh
# Guess: FP16 BatchNormalization with FP32 statistics, which ONNX allows since opset 15, is read or folded by all.
# Seen: onnxslim 0.1.98 and onnxscript 0.7.2 fold it into an FP16 Conv with FP32 weights, a file that neither onnx's
# checker nor ONNX Runtime takes. OpenVINO 2026.4.1 does not read the model. ONNX Runtime 1.32.0 and onnxsim are right.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxslim==0.1.98 onnxsim==0.8.1 onnxscript==0.7.2 openvino==2026.4.1
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
import onnxscript.optimizer
import onnxsim
import onnxslim
import openvino
from onnx import TensorProto, helper, numpy_helper

def model_of(nodes: list, kind: int, shape: list, constants: dict, opset: int) -> onnx.ModelProto:
    """Return a valid model from x to y in a float type."""
    ends = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def folded(weight: float, kind: type) -> onnx.ModelProto:
    """Return an FP16 Conv and its BatchNormalization, with statistics in a type."""
    half = TensorProto.FLOAT16
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], epsilon=1e-8),
    ]
    zero = np.zeros(2, kind)
    constants = {"w": np.full((2, 2, 1, 1), weight, np.float16), "s": zero + 1, "b": zero, "m": zero, "v": zero}
    return model_of(nodes, half, [1, 2, 4, 4], constants, 17)


def opened(model: onnx.ModelProto) -> bool:
    """Tell whether both onnx's checker and ONNX Runtime take a file."""
    ort.set_default_logger_severity(4)
    try:
        onnx.checker.check_model(model, full_check=True)
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        print("   ", " ".join(str(error).split())[:150])
        return False
    return True


def read_by_openvino(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, which OpenVINO has read."""
    core = openvino.Core()
    core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    return model


TOOLS = {
    "nothing": lambda model: model,
    "onnxsim": lambda model: onnxsim.simplify(model)[0],
    "onnxslim": onnxslim.slim,
    "onnxscript": onnxscript.optimizer.optimize,
    "openvino": read_by_openvino,
}
found = {}
for name, tool in TOOLS.items():
    model = folded(1.0, np.float32)
    print(name)
    try:
        found[name] = opened(tool(model))
    except RuntimeError as error:
        print("   ", " ".join(str(error).split())[:150])
        found[name] = False
print(found)
sys.exit({name for name, fine in found.items() if fine} != {"nothing", "onnxsim"})
PYTHON
