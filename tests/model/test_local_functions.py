"""Local functions: put in place of their calls they compute what they computed before."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from models import normal, save
from precision_bisect.errors import ModelError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.protocols import Sample


def called(before: int, after: int, body: str) -> onnx.ModelProto:
    """Return a model of one opset that calls a function of another with this body."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {after}, "local": 1]>
        g (float[2,3] x) => (float[n,m] y) {{ y = local.act(x) }}
        <domain: "local", opset_import: ["": {before}]> act (p) => (q) {{ {body} }}""")


def test_defaults_of_local_functions_count(tmp_path: Path) -> None:
    """onnx's inliner drops what refers to a default: another model would be searched."""
    text = """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (float[2] x, bool c) => (float[2] y) {
            a = local.outer(x)
            y = If(c) <then_branch = t () => (float[2] b) { b = local.act(a) },
                       else_branch = e () => (float[2] d) { d = local.act<slope = 0.75>(a) }> }
        <domain: "local", opset_import: ["": 17, "local": 1]> outer (p) => (q) {
            q = local.act(p) }
        <domain: "local", opset_import: ["": 17]> act <slope: float = 0.5> (p) => (q) {
            q = LeakyRelu<alpha: float = @slope>(p) }"""
    model = load_model(save(onnx.parser.parse_model(text), tmp_path))
    for taken, expected in ((True, -0.25), (False, -0.375)):
        feed: Sample = {"x": np.array([-1, 4], np.float32), "c": np.array(taken)}
        (outputs,) = reference_outputs(model, [feed])
        np.testing.assert_array_equal(outputs["y"], np.array([expected, 4], np.float32))


def test_defaults_count_behind_attributes_that_a_call_leaves_out(tmp_path: Path) -> None:
    """A function hands on what it has; where it has none, the default inside counts."""
    text = """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (float[2] x) => (float[2] y, float[2] z) {
            y = local.outer(x) z = local.outer<slope = 0.25>(x) }
        <domain: "local", opset_import: ["": 17, "local": 1]> outer <slope> (p) => (q) {
            r = local.middle<slope: float = @slope>(p) q = LeakyRelu<alpha: float = @slope>(r) }
        <domain: "local", opset_import: ["": 17, "local": 1]> middle <slope> (p) => (q) {
            q = local.act<slope: float = @slope>(p) }
        <domain: "local", opset_import: ["": 17]> act <slope: float = 0.5> (p) => (q) {
            q = LeakyRelu<alpha: float = @slope>(p) }"""
    proto = onnx.parser.parse_model(text)
    feed: Sample = {"x": np.array([-1, 4], np.float32)}
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip("yz", session.run(None, feed), strict=True))
    (outputs,) = reference_outputs(load_model(save(proto, tmp_path)), [feed])
    np.testing.assert_allclose(outputs["y"], [-0.005, 4], rtol=1e-6)
    for name in "yz":
        np.testing.assert_array_equal(outputs[name], expected[name])


@pytest.mark.parametrize(
    ("before", "after", "body"),
    [
        (13, 17, "s = Constant<value = int64[2] {2, 3}>() q = Reshape(p, s)"),
        (11, 17, "q = Gemm<transB = 1>(p, p)"),
        (15, 17, "q = Exp(p)"),
        (18, 17, "q = Exp(p)"),
        (
            13,
            17,
            "s = Constant<value_floats = [1.0, 2.0, 3.0]>() q = BatchNormalization(p, s, s, s, s)",
        ),
    ],
)
def test_functions_of_operators_that_a_version_added_to(
    before: int, after: int, body: str, tmp_path: Path
) -> None:
    """What is new there and left out changes nothing: such a function is put in place."""
    proto = called(before, after, body)
    feed: Sample = {"x": normal(2, 3)}
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (outputs,) = reference_outputs(load_model(save(proto, tmp_path)), [feed])
    np.testing.assert_array_equal(outputs["y"], session.run(None, feed)[0])


@pytest.mark.parametrize(
    ("before", "after", "body"),
    [
        (13, 18, "q, r = Split(p)"),
        (18, 21, "q = GroupNormalization<num_groups = 1>(p, p, p)"),
        (10, 17, "q = RoiAlign(p, p, p)"),
        (18, 17, "s = Constant<value = int64[1] {0}>() q = ReduceMax(p, s)"),
    ],
)
def test_functions_of_operators_that_a_version_changed(
    before: int, after: int, body: str, tmp_path: Path
) -> None:
    """The same text is another computation there: it is refused, and not computed."""
    with pytest.raises(ModelError, match=f"opset {before}, the model of {after}"):
        load_model(save(called(before, after, body), tmp_path))


def test_functions_of_another_opset(tmp_path: Path) -> None:
    """Their nodes are layers, too; not where an operator is another at the model's opset."""
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2,3] x) => (float[2,3] y) { y = local.act(x) }
        <domain: "local", opset_import: ["": 13]> act (p) => (q) { t = Exp(p) q = Softmax(t) }"""
    proto = onnx.parser.parse_model(text)
    model = load_model(save(proto, tmp_path))
    assert [layer.op_type for layer in model.table.candidates] == ["Exp", "Softmax"]
    proto.opset_import.pop(0)
    model = load_model(save(proto, tmp_path))
    assert [layer.op_type for layer in model.table.candidates] == ["Exp", "Softmax"]
    proto.opset_import.append(helper.make_opsetid("", 17))
    proto.functions[0].opset_import[0].version = 11
    with pytest.raises(ModelError, match="of opset 11, the model of 17, where Softmax is another"):
        load_model(save(proto, tmp_path))
