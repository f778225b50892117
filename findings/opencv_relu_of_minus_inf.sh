#!/bin/sh
# Guess: a Relu of -inf is 0 in OpenCV, and its Softplus of 100 is 100, as elsewhere.
# Seen (opencv-python-headless 5.0.0.93), in FP32: Relu(-inf) is NaN and Softplus(100) is inf. So what FP16 drove to -inf
# before a Relu does no harm elsewhere, and is NaN here.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 opencv-python-headless==5.0.0.93
"$place/venv/bin/python" - <<'PYTHON'
import sys

import cv2
import numpy as np
import onnx
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


def by_opencv(nodes: list, values: list) -> np.ndarray:
    """Return what OpenCV computes of values, in FP32."""
    model = model_of(nodes, TensorProto.FLOAT, [4], {}, 18)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    net.setInput(np.array(values, np.float32), "x")
    return np.ravel(net.forward())


relu = by_opencv([helper.make_node("Relu", ["x"], ["y"])], [-np.inf, -1, 0, 2])
halves = [
    helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
    helper.make_node("Cast", ["h"], ["t"], to=TensorProto.FLOAT),
    helper.make_node("Relu", ["t"], ["y"]),
]
through_half = by_opencv(halves, [-70000, -1, 0, 2])
softplus = by_opencv([helper.make_node("Softplus", ["x"], ["y"])], [100, 80, 0, -5])
print("OpenCV", cv2.__version__, "Relu", relu, "through FP16", through_half, "Softplus", softplus)
lost = np.isnan(relu[0]) and np.isnan(through_half[0]) and np.isinf(softplus[0])
sys.exit(not (lost and abs(float(softplus[1]) - 80) < 1e-3))
PYTHON
