#!/bin/sh
# Guess: tools that merge equal constants keep 0 and -0 apart, for they compare bytes; and all types alike.
# Seen: onnxslim 0.1.98 makes one constant of both, in FP32 and FP16: 1/-0 becomes +inf. onnxoptimizer 0.4.2 does so in
# FP32 only. onnxsim 0.8.1, onnxscript 0.7.2 and ONNX Runtime 1.32.0 keep them apart.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxslim==0.1.98 onnxoptimizer==0.4.2 onnxsim==0.8.1 onnxscript==0.7.2
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime as ort
import onnxscript.optimizer
import onnxsim
import onnxslim
from onnx import TensorProto, helper, numpy_helper

TOOLS = {
    "nothing": lambda model: model,
    "onnxslim": onnxslim.slim,
    "onnxoptimizer": lambda model: onnxoptimizer.optimize(
        model, onnxoptimizer.get_fuse_and_elimination_passes()
    ),
    "onnxsim": lambda model: onnxsim.simplify(model)[0],
    "onnxscript": onnxscript.optimizer.optimize,
}


def signs(tool: str, kind: int, dtype: type) -> tuple[float, float]:
    """Return 1/0 and 1/-0 of a model that a tool has rewritten."""
    zero = np.zeros(4, dtype)
    nodes = [helper.make_node("Div", ["x", name], [f"by_{name}"]) for name in ("plus", "minus")]
    ends = [helper.make_tensor_value_info(name, kind, [4]) for name in ("x", "by_plus", "by_minus")]
    held = [numpy_helper.from_array(zero, "plus"), numpy_helper.from_array(-zero, "minus")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(
        TOOLS[tool](model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return tuple(float(out[0]) for out in session.run(None, {"x": np.ones(4, dtype)}))


merged = set()
for tool in TOOLS:
    for name, kind, dtype in (("FP32", TensorProto.FLOAT, np.float32), ("FP16", TensorProto.FLOAT16, np.float16)):
        found = signs(tool, kind, dtype)
        print(f"{tool:14} {name}  1/0 = {found[0]}, 1/-0 = {found[1]}")
        if found != (np.inf, -np.inf):
            merged.add((tool, name))
sys.exit(merged != {("onnxslim", "FP32"), ("onnxslim", "FP16"), ("onnxoptimizer", "FP32")})
PYTHON
