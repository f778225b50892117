#!/bin/sh
# Guess: OpenCV either computes an ONNX Cast to BFLOAT16 and back or refuses the model.
# Seen (opencv-python-headless 5.0.0.93): it takes the bits for numbers: 1.01 becomes 16257, 0x3F81, without a word. The
# same pair through FLOAT16 is right.
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


def there_and_back(kind: int) -> np.ndarray:
    """Return what OpenCV makes of a Cast to a type and back."""
    nodes = [helper.make_node("Cast", ["x"], ["t"], to=kind), helper.make_node("Cast", ["t"], ["y"], to=1)]
    model = model_of(nodes, TensorProto.FLOAT, [4], {}, 18)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    net.setInput(np.array([1.01, 2, 0.5, 100], np.float32), "x")
    return np.ravel(net.forward())


half, low = there_and_back(TensorProto.FLOAT16), there_and_back(TensorProto.BFLOAT16)
print("OpenCV", cv2.__version__, "through FLOAT16", half, "through BFLOAT16", low)
right = np.allclose(half, [1.01, 2, 0.5, 100], rtol=1e-3)
sys.exit(not (right and float(low[0]) == 0x3F81))
PYTHON
