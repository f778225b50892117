"""Operators that engines lack are loaded as ONNX's function of them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from models import load_text, parse, save
from operator_cases import NodeCase, node_cases
from precision_bisect.backends.emulation.semantics import in_pieces
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.settings.targets import written_out

WRITTEN_OUT = written_out()["operators"]
NEWEST = onnx.defs.onnx_opset_version()


def at_newest(case: NodeCase) -> NodeCase:
    """Return a case at the newest opset, whose form of the operator it has."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    model.opset_import[0].version = NEWEST
    return case._replace(model=model)


CASES = [
    at_newest(case)
    for case in node_cases()
    if case.model.graph.node[0].op_type in WRITTEN_OUT
    and not case.model.graph.node[0].domain
    and case.model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
]
GATED = """(float[2,8] x) => (float[2,8] y) {
    a = Abs(x) b = Neg(x) z = SwiGLU(a, b) w = Swish<alpha = 2.0>(z) y = Tanh(w) }"""
CAUSAL = """(float[1,4,8] x, float[1,4,2] d) => (float[1,4,8] y) {
    q = Tanh(x) k = Sin(x) v = Cos(x) e = Sigmoid(d)
    o, s = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "delta">(
        q, k, v, , , e)
    y = Tanh(o) }"""
NETWORKS = {"SwiGLU": GATED, "LinearAttention": CAUSAL}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_pieces_compute_what_the_operator_does(case: NodeCase, tmp_path: Path) -> None:
    """By ONNX's own reference of the operator as a whole, in each of ONNX's cases."""
    names = [value.name for value in case.model.graph.input]
    feed = dict(zip(names, map(np.asarray, case.values), strict=True))
    model = load_model(save(case.model, tmp_path))
    assert case.model.graph.node[0].op_type not in {
        node.op_type for node in model.proto.graph.node
    }
    expected = ReferenceEvaluator(case.model).run(None, feed)
    (found,) = reference_outputs(model, [feed])
    for spec, array in zip(model.outputs, expected, strict=True):
        np.testing.assert_allclose(found[spec.name], array, rtol=1e-4, atol=1e-5)


def test_every_operator_of_the_table_is_tried() -> None:
    """Above."""
    assert {case.model.graph.node[0].op_type for case in CASES} == {*WRITTEN_OUT}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_written_out_is_said_with_versions(name: str, tmp_path: Path) -> None:
    """Before the search: its layers have other names than the file's."""
    remark = in_pieces(load_text(NETWORKS[name], tmp_path, opset=NEWEST))
    assert f"1 {name}" in remark and f"onnxruntime {written_out()['onnxruntime']}" in remark
    assert "" == in_pieces(load_text("(float[2] x) => (float[2] y) { y = Neg(x) }", tmp_path))


def test_an_operator_in_a_branch_is_written_out(tmp_path: Path) -> None:
    """As its engine lacks it there, too."""
    text = """(float[2,8] x, bool c) => (float[2,8] y) { y = If(c)
        <then_branch = t () => (float[2,8] a) { a = SwiGLU(x, x) },
         else_branch = e () => (float[2,8] b) { b = Neg(x) }> }"""
    model = load_model(save(parse(text, opset=NEWEST), tmp_path))
    (chosen,) = model.proto.graph.node
    assert "SwiGLU" not in str(chosen) and {"SwiGLU": 1} == model.written_out


def test_of_unknown_types_it_stays(tmp_path: Path) -> None:
    """A function that depends on types cannot be had without; the engine may know it."""
    text = CAUSAL.replace("q = Tanh(x)", "q = mine.Op(x)")
    model = load_text(text, tmp_path, opset=NEWEST, domains='"mine": 1')
    assert "LinearAttention" in {node.op_type for node in model.proto.graph.node}
    assert not model.written_out
