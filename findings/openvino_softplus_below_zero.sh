#!/bin/sh
# Guess: Softplus, a logarithm of 1 and more, is never below 0: at -20 it is 2e-9.
# Seen (OpenVINO 2026.4.1, CPU, told to compute in FP32): -1.9e-6 at -20, in FP32 and FP16 files. Its square root or
# logarithm is NaN. ONNX Runtime 1.32.0 gives 2.06e-9.
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
lowest = []
for name, kind, dtype in (("FP32", TensorProto.FLOAT, np.float32), ("FP16", TensorProto.FLOAT16, np.float16)):
    model = model_of([helper.make_node("Softplus", ["x"], ["y"])], kind, [4], {}, 18).SerializeToString()
    x = np.array([-20, -17, -10, 1], dtype)
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    found = compiled([x])[0]
    print(name, "openvino", found, "onnxruntime", session.run(None, {"x": x})[0])
    lowest.append(float(found[0]))
sys.exit(not all(-1e-5 < number < 0 for number in lowest))
PYTHON
