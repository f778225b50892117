#!/bin/sh
# Guess: tract accumulates FP16 sums in one type, be they a ReduceSum, a ReduceMean or a pool: all right, or all wrong.
# Seen (tract 0.23.9): the sum of 5,000 ones is 5000, so sums are wide. The mean of 70,000 ones is 0, since it divides by
# their number in FP16, which is inf. Pools sum in FP16: the average of 64 times 60000 is inf.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 tract==0.23.9
"$place/venv/bin/python" - <<'PYTHON'
import sys
import tempfile

import numpy as np
import onnx
import tract
from onnx import TensorProto, helper

HALF = TensorProto.FLOAT16


def by_tract(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what tract computes of x."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        onnx.save(model, path)
        runnable = tract.onnx().load(path).into_model().into_runnable()
        return runnable.run([x])[0].to_numpy()


def value(operator: str, shape: list, result: list, number: float, **attributes: object) -> float:
    """Return the only value that an operator gives of equal ones."""
    ends = [helper.make_tensor_value_info(n, HALF, s) for n, s in (("x", shape), ("y", result))]
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return float(np.ravel(by_tract(model, np.full(shape, number, np.float16)))[0])


found = {
    "sum of 5,000 ones": value("ReduceSum", [1, 5000], [1, 1], 1, axes=[1]),
    "mean of 5,000 ones": value("ReduceMean", [1, 5000], [1, 1], 1, axes=[1]),
    "mean of 70,000 ones": value("ReduceMean", [1, 70000], [1, 1], 1, axes=[1]),
    "AveragePool of 60000": value("AveragePool", [1, 1, 8, 8], [1, 1, 1, 1], 60000, kernel_shape=[8, 8]),
    "GlobalAveragePool of 60000": value("GlobalAveragePool", [1, 1, 8, 8], [1, 1, 1, 1], 60000),
}
for name, number in found.items():
    print(f"{name:27} {number}")
sys.exit([*found.values()] != [5000.0, 1.0, 0.0, np.inf, np.inf])
PYTHON
