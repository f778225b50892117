#!/bin/sh
# Guess: what onnx's checker accepts, its inliner takes apart; an operator that ONNX Runtime takes apart opens at every
# opset since its first.
# Seen: SwiGLU without alpha becomes a Constant without a value, LinearAttention without a state raises; ONNX Runtime
# opens Swish at opset 24, and not from 25 on.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$place/venv/bin/python" - <<'PYTHON'
import sys

import onnx
import onnxruntime as ort
from onnx.inliner import inline_selected_functions


def model_of(opset: int, graph: str) -> onnx.ModelProto:
    """Return a valid model."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {graph}')
    onnx.checker.check_model(model, full_check=True)
    return model


def pieces(model: onnx.ModelProto, *operators: str) -> str:
    """Return what the inliner does with these operators of a model."""
    chosen = [("", operator) for operator in operators]
    try:
        inlined = inline_selected_functions(model, chosen, inline_schema_functions=True)
    except RuntimeError:
        return "raises"
    empty = [node for node in inlined.graph.node if node.op_type == "Constant" and not node.attribute]
    return "a Constant without a value" if empty else "inlined"


def opens(opset: int) -> bool:
    """Tell whether ONNX Runtime opens a Swish."""
    model = model_of(opset, "(float[4] x) => (float[4] y) { y = Swish(x) }")
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return False
    return True


gate = "(float[2,4] a, float[2,4] b) => (float[2,4] y) {{ y = SwiGLU{}(a, b) }}"
attention = """(float[1,4,8] q, float[1,4,8] k, float[1,4,8] v, float[1,4,2] d) => (float[1,4,8] y, float[1,2,4,4] s) {{
    y, s = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "{}">(q, k, v{}) }}"""
found = {
    "SwiGLU": pieces(model_of(28, gate.format("")), "SwiGLU", "Swish"),
    "SwiGLU by 1.0": pieces(model_of(28, gate.format("<alpha = 1.0>")), "SwiGLU", "Swish"),
    "LinearAttention": pieces(model_of(28, attention.format("linear", "")), "LinearAttention"),
    "LinearAttention, gated": pieces(model_of(28, attention.format("gated", ", , d")), "LinearAttention"),
}
opened = [opset for opset in range(24, 29) if opens(opset)]
print("onnx", onnx.__version__, found, "onnxruntime", ort.__version__, "opens Swish at", opened)
sys.exit(
    list(found.values()) != ["a Constant without a value", "inlined", "inlined", "raises"]
    or opened != [24]
)
PYTHON
