#!/bin/sh
# Guess: ONNX's own reference evaluator adds FP16 values alike along any axis: 5,000 ones are 5,000.
# Seen (onnx 1.23.2, numpy 2.4.6): along the last axis 5,000, along the first of two 2,048, where FP16 has no odd
# numbers any more; ReduceMean gives 1 and 0.41, ReduceL2 70.7 and 45.25. CumSum stops at 2,048 along every axis.
# MatMul, Gemm, Conv and Einsum of as many ones are right. ONNX Runtime 1.32.0 (CPU) gives 5,000 along both.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__, "numpy", np.__version__, "onnxruntime", ort.__version__)


def both(op_type: str, arrays: list, **attributes: object) -> tuple[float, float]:
    """Return the last element by the reference and by ONNX Runtime."""
    feed = {f"x{i}": array for i, array in enumerate(arrays)}
    node = helper.make_node(op_type, [*feed], ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feed.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sides = ReferenceEvaluator(model), session
    return tuple(float(side.run(None, feed)[0].ravel()[-1]) for side in sides)


changed = False
for axis, wanted in ((1, (5000.0, 1.0)), (0, (2048.0, 0.4097))):
    ones = np.ones((5000, 2) if axis == 0 else (2, 5000), np.float16)
    for op_type, expected in zip(("ReduceSum", "ReduceMean"), wanted):
        seen, right = both(op_type, [ones, np.array([axis])], keepdims=0)
        print(op_type, "axis", axis, "reference", seen, "onnxruntime", right)
        changed |= abs(seen - expected) > 1e-3 or right not in (5000.0, 1.0)
seen, right = both("CumSum", [np.ones(5000, np.float16), np.array(0)])
print("CumSum reference", seen, "onnxruntime", right)
changed |= seen != 2048.0 or right != 5000.0
seen, _ = both("MatMul", [np.ones((1, 5000), np.float16), np.ones((5000, 1), np.float16)])
print("MatMul reference", seen)
sys.exit(changed or seen != 5000.0)
PYTHON
