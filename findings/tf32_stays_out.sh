#!/bin/sh
# Guess: with use_tf32=1, ONNX Runtime's default, all FP32 products on a GPU with TF32 use it: MatMul, Conv, ConvTranspose.
# Seen (ONNX Runtime 1.31.1, H100): MatMul and 2-D Conv do. A MatMul of one row, depthwise and 1-D Conv, a Conv of three
# channels and ConvTranspose stay FP32 to the last bit, whatever the option says.
# Needs a GPU of compute capability 8.0 or later. Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 'onnxruntime-gpu[cuda,cudnn]==1.31.1'
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

ort.preload_dlls()
print("onnxruntime", ort.__version__, "onnx", onnx.__version__)
CASES = {
    "MatMul, 64 rows": ("MatMul", (64, 256), (256, 64), {}),
    "MatMul, 1 row": ("MatMul", (1, 256), (256, 64), {}),
    "Conv, 64 channels": ("Conv", (1, 64, 28, 28), (64, 64, 3, 3), {}),
    "Conv, 3 channels": ("Conv", (1, 3, 28, 28), (64, 3, 3, 3), {}),
    "Conv, depthwise": ("Conv", (1, 64, 28, 28), (64, 1, 3, 3), {"group": 64}),
    "Conv, 1-D": ("Conv", (1, 64, 400), (64, 64, 5), {}),
    "ConvTranspose": ("ConvTranspose", (1, 32, 28, 28), (32, 16, 2, 2), {"strides": [2, 2]}),
}


def differs(operator: str, shape: tuple, weights: tuple, attributes: dict) -> float:
    """Return how far the outputs with and without TF32 are apart."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weights))
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    outputs = []
    for option in "01":
        provider = ("CUDAExecutionProvider", {"use_tf32": option})
        session = ort.InferenceSession(model.SerializeToString(), providers=[provider])
        assert "CUDAExecutionProvider" in session.get_providers(), "no GPU"
        outputs.append(session.run(None, {"x": x})[0])
    return float(np.abs(outputs[0] - outputs[1]).max())


found = {name: differs(*case) for name, case in CASES.items()}
for name, distance in found.items():
    print(f"{name:18} {distance:.3g}", "in TF32" if distance else "the same bits")
used = {name for name, distance in found.items() if distance > 1e-4}
same = {name for name, distance in found.items() if not distance}
sys.exit(used != {"MatMul, 64 rows", "Conv, 64 channels"} or used | same != {*CASES})
PYTHON
