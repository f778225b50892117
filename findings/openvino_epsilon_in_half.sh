#!/bin/sh
# Guess: OpenVINO, which is told to compute in FP32, computes the BatchNormalization of an FP16 file in FP32.
# Seen (OpenVINO 2026.4.1, CPU, INFERENCE_PRECISION_HINT f32): an epsilon of 1e-8 beside a variance of 0 gives NaN; it
# folds the statistics in the type of the file, where 1e-8 is 0. In the FP32 file it gives 10. ONNX Runtime 1.32.0 gives
# 10 for both.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
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


core = openvino.Core()
found = {}
for name, kind, dtype in (("FP32", TensorProto.FLOAT, np.float32), ("FP16", TensorProto.FLOAT16, np.float16)):
    zero = np.zeros(1, dtype)
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=1e-8)
    constants = {"s": zero + 1, "b": zero, "m": zero, "v": zero}
    model = model_of([node], kind, [1, 1, 4], constants, 17).SerializeToString()
    x = np.full((1, 1, 4), 1e-3, dtype)
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    found[name] = float(compiled([x])[0][0, 0, 0])
    print(name, "openvino", found[name], "onnxruntime", session.run(None, {"x": x})[0][0, 0, 0])
sys.exit(not (abs(found["FP32"] - 10) < 0.1 and np.isnan(found["FP16"])))
PYTHON
