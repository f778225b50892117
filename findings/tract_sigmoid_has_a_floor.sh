#!/bin/sh
# Guess: a Sigmoid of -inf is 0, and one of -20 at most 2e-9.
# Seen (tract 0.23.9): both are 4.5e-7 in FP32 and 4.8e-7 in FP16, an approximation with a floor. What a mask of -inf
# switches off keeps a share. ONNX Runtime 1.32.0 gives 0 for both.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 tract==0.23.9 onnxruntime==1.32.0
"$place/venv/bin/python" - <<'PYTHON'
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import tract
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


def by_tract(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what tract computes of x."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        onnx.save(model, path)
        runnable = tract.onnx().load(path).into_model().into_runnable()
        return runnable.run([x])[0].to_numpy()


found = {}
for name, kind, dtype in (("FP32", TensorProto.FLOAT, np.float32), ("FP16", TensorProto.FLOAT16, np.float16)):
    model = model_of([helper.make_node("Sigmoid", ["x"], ["y"])], kind, [4], {}, 13)
    x = np.array([-np.inf, -20, -12, 0], dtype)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found[name] = by_tract(model, x).astype(float)
    print(name, "tract", found[name], "onnxruntime", session.run(None, {"x": x})[0])
floors = [number for name in found for number in found[name][:2]]
sys.exit(not all(4e-7 < number < 5e-7 for number in floors))
PYTHON
