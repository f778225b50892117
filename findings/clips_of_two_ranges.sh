#!/bin/sh
# Guess: onnxscript.optimizer makes one Clip of two, with the value of the two in a row.
# Seen (onnxscript 0.7.2): of Clip to [-1, 1] and Clip to [2, 6], which give 2, it makes one Clip from 2 to 1, which gives
# 1. In FP32 and FP16. ONNX Runtime 1.32.0 keeps both, and gives 2.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
import onnxscript.optimizer
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


def clipped(kind: int, dtype: type) -> tuple[float, float]:
    """Return what the two Clips give, before and after the optimizer."""
    nodes = [helper.make_node("Clip", ["x", "a", "b"], ["t"]), helper.make_node("Clip", ["t", "c", "d"], ["y"])]
    bounds = {name: np.array(bound, dtype) for name, bound in zip("abcd", (-1, 1, 2, 6))}
    model = model_of(nodes, kind, [4], bounds, 18)
    outputs = []
    for each in (model, onnxscript.optimizer.optimize(model)):
        session = ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs.append(float(session.run(None, {"x": np.full(4, 0.5, dtype)})[0][0]))
    return tuple(outputs)


found = {
    "FP32": clipped(TensorProto.FLOAT, np.float32),
    "FP16": clipped(TensorProto.FLOAT16, np.float16),
}
print("onnxscript 0.7.2; before and after:", found)
sys.exit(set(found.values()) != {(2.0, 1.0)})
PYTHON
