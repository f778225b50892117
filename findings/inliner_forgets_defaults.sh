#!/bin/sh
# Guess: a model whose local functions were put in place by onnx.inliner computes what it computed before.
# Seen (onnx 1.23.2, onnxruntime 1.32.0): the default that a function declares for an attribute is forgotten where a call
# leaves it out: LeakyRelu with a slope of 0.5 by the function's default gives -0.01 for -1, by the operator's own default,
# and -0.5 in ONNX Runtime before. With the slope in the call both agree. Both files pass the checker.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0
"$place/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnx.inliner
import onnxruntime

TEXT = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
g (float[2] x) => (float[2] y) { y = own.act%s(x) }
<domain: "own", opset_import: ["": 17]>
act <slope: float = 0.5> (p) => (q) { q = LeakyRelu<alpha: float = @slope>(p) }"""


def ran(model):
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": np.array([-1, 4], np.float32)})[0].tolist()


print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
found = {}
for call in ("", "<slope = 0.25>"):
    model = onnx.parser.parse_model(TEXT % call)
    found[call] = ran(model), ran(onnx.inliner.inline_local_functions(model))
    print("call", call or "without a slope", "before", found[call][0], "in place", found[call][1])
before, after = found[""]
agree = found["<slope = 0.25>"]
sys.exit(not (agree[0] == agree[1] and before[0] == -0.5 and abs(after[0] + 0.01) < 1e-6))
PYTHON
