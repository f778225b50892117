#!/bin/sh
# Guess: ONNX Runtime's optimizer takes Relu away before QuantizeLinear only where the quantized values have no sign.
# Seen (onnxruntime 1.32.0, CPU): from EXTENDED on, the default included, it does so before both FP8 types, which have a
# sign: -2 becomes -2. With the rule ReluQuantRewrite disabled, at BASIC and to INT8 with zero point 0 it becomes 0.
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

TEXT = """<ir_version: 9, opset_import: ["" : 19]>
g (float[4] x) => (float[4] y) <float scale = {1.0}> {
    r = Relu (x)
    q = QuantizeLinear (r, scale, zero)
    y = DequantizeLinear (q, scale, zero)
}"""
LEVELS = ort.GraphOptimizationLevel


def least(kind: int, level: LEVELS = LEVELS.ORT_ENABLE_ALL, disabled: tuple[str, ...] = ()) -> float:
    """Return the least output for inputs of both signs."""
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(helper.make_tensor("zero", kind, [], [0]))
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    session = ort.InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=set(disabled),
    )
    return float(session.run(None, {"x": np.array([-2, -1, 1, 2], np.float32)})[0].min())


E4M3, E5M2 = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2
found = {
    "E4M3": least(E4M3),
    "E5M2": least(E5M2),
    "E4M3 at EXTENDED": least(E4M3, LEVELS.ORT_ENABLE_EXTENDED),
    "E4M3 at BASIC": least(E4M3, LEVELS.ORT_ENABLE_BASIC),
    "E4M3 without the rule": least(E4M3, disabled=("ReluQuantRewrite",)),
    "INT8": least(TensorProto.INT8),
}
print("onnxruntime 1.32.0; the least output behind Relu:", found)
sys.exit([*found.values()] != [-2.0, -2.0, -2.0, 0.0, 0.0, 0.0])
PYTHON
