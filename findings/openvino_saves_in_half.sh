#!/bin/sh
# Guess: openvino.save_model, which stores weights in FP16 unless told otherwise, leaves those in FP32 that FP16 cannot
# hold.
# Seen (OpenVINO 2026.4.1): a weight of 100,000 is stored as 65,504, and one of 1e-9 as 0, without a word; computed in
# FP32 the model gives other results than the file that it was made of. With compress_to_fp16=False both stay.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 openvino==2026.4.1
cd "$place"
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

print("openvino", openvino.__version__)
weights = np.array([1e5, 1e-9, 1, 2], np.float32)
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
graph = helper.make_graph(
    [helper.make_node("Mul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")]
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, "model.onnx")
core, results = openvino.Core(), {}
for name, options in (("as it is by default", {}), ("in FP32", {"compress_to_fp16": False})):
    openvino.save_model(openvino.convert_model("model.onnx"), "model.xml", **options)
    compiled = core.compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results[name] = compiled([np.ones(4, np.float32)])[0]
    print(name, results[name])
    del compiled
by_default, exact = results.values()
sys.exit(not (np.array_equal(exact, weights) and by_default[0] == 65504 and by_default[1] == 0))
PYTHON
