#!/bin/sh
# Guess: Celu of opset 28, which takes FP16 and BF16, is parsed in them as Elu is.
# Seen: TensorRT-RTX 1.7.1 refuses it. Its parser divides the half input by an FP32 constant.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 tensorrt_rtx==1.7.1.116
"$place/venv/bin/python" - <<'PYTHON'
import sys

import onnx
import tensorrt_rtx as trt
from onnx import TensorProto, helper

log = trt.Logger(trt.Logger.INTERNAL_ERROR)
builder = trt.Builder(log)
print("tensorrt_rtx", trt.__version__, "onnx", onnx.__version__)


def parsed(operator: str, kind: int) -> str:
    """Return "" where the parser takes a valid model of this operator, else what it says."""
    ends = [helper.make_tensor_value_info(name, kind, [2, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)], ir_version=14)
    onnx.checker.check_model(model, full_check=True)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    return "" if parser.parse(model.SerializeToString()) else parser.get_error(0).desc()


found = {}
for operator in ("Elu", "Celu"):
    for name in ("FLOAT", "FLOAT16", "BFLOAT16"):
        found[operator, name] = parsed(operator, getattr(TensorProto, name))
        print(f"{operator:5} {name:9}", found[operator, name] or "parsed")
refused = {key for key, said in found.items() if said}
sys.exit(refused != {("Celu", "FLOAT16"), ("Celu", "BFLOAT16")})
PYTHON
