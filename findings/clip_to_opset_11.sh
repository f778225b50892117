#!/bin/sh
# Guess: onnx's version converter gives Clip and Pad constants of the type of their input.
# Seen (onnx 1.23.2): from opset 10 to 11 the attributes of an FP16 Clip and Pad become FP32 constants. The file fails
# onnx's own checker, and the converter does not say so.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2
"$place/venv/bin/python" - <<'PYTHON'
import sys

import onnx
from onnx import version_converter

print("onnx", onnx.__version__)
TEXTS = {
    "Clip": "(TYPE[4] x) => (TYPE[4] y) { y = Clip<min = -1.0, max = 1.0>(x) }",
    "Pad": "(TYPE[1,4] x) => (TYPE[1,6] y) { y = Pad<pads = [0, 1, 0, 1], value = 1.0>(x) }",
}


def converted(text: str, kind: str) -> str:
    """Return what the checker says of a model that was valid at opset 10, at opset 11."""
    head = '<ir_version: 8, opset_import: ["": 10]> g '
    model = onnx.parser.parse_model(head + text.replace("TYPE", kind))
    onnx.checker.check_model(model, full_check=True)
    try:
        onnx.checker.check_model(version_converter.convert_version(model, 11), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())
    return ""


found = {(name, kind): converted(text, kind) for name, text in TEXTS.items() for kind in ("float", "float16")}
for (name, kind), said in found.items():
    print(f"{name:5} {kind:8}", said or "valid")
broken = {key for key, said in found.items() if "inconsistent type tensor(float)" in said}
sys.exit(broken != {("Clip", "float16"), ("Pad", "float16")} or any(found[n, "float"] for n in TEXTS))
PYTHON
