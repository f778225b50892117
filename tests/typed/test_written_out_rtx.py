"""Models with operators that engines lack: the files of plans open, and are built."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

pytest.importorskip("tensorrt_rtx", reason="pip install tensorrt_rtx")

from engines.operator_models import between, cases_by_operator, with_constants
from engines.rtx_conditions import Form, built, typed_file

from model.test_written_out import CAUSAL, GATED, NEWEST
from models import parse
from precision_bisect.settings.targets import written_out

FORMS = {
    "low": Form(place="alone", kept=False),
    "low, FP16 interface": Form(place="alone", kept=False, half_interface=True),
    "low in BF16": Form(place="alone", kept=False, low="bf16"),
}
NORM = """(float[2,8] x, float[8] s) => (float[2,8] y) {{
    a = Abs(x) h = Cast<to = {x}>(a) t = Cast<to = {scale}>(s)
    z = RMSNormalization(h, t) w = Cast<to = 1>(z) y = Neg(w) }}"""
MODELS = {
    "gated": parse(GATED, opset=NEWEST),
    "causal": parse(CAUSAL, opset=NEWEST),
    # ONNX allows a scale of another type, and ONNX Runtime does not: plans have one type.
    "norm, FP32 scale": parse(NORM.format(x=onnx.TensorProto.FLOAT16, scale=1), opset=23),
    "norm, FP16 scale": parse(NORM.format(x=1, scale=onnx.TensorProto.FLOAT16), opset=23),
}
for _operator in written_out()["operators"]:
    _, _case, _values = cases_by_operator()[_operator][-1]
    MODELS[_operator] = between(with_constants(_case, _values, False)[0])
    MODELS[_operator].opset_import[0].version = NEWEST


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_files_with_pieces_open_and_are_built(name: str, form: str, tmp_path: Path) -> None:
    """By ONNX Runtime, which takes BF16 on few CPUs, and by TensorRT-RTX."""
    path, reason = typed_file(MODELS[name], FORMS[form], tmp_path)
    assert path is not None, reason
    if FORMS[form].low == "fp16":
        onnxruntime.InferenceSession(path)
    assert "" == built(path)
    assert {*written_out()["operators"]}.isdisjoint(n.op_type for n in onnx.load(path).graph.node)
