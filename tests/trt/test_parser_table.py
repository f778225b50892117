"""The table of TensorRT's parser against the parser itself, and the emulator against the table."""

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import onnx
import pytest

from backends.test_parser_steps import PARSED, UNKNOWN_FORMS, own_steps, rounding
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.types import in_fp32
from precision_bisect.settings.targets import parser_steps

pytest.importorskip("tensorrt_rtx", reason="pip install tensorrt_rtx")

from engines.operator_models import REAL_SIZES, Case, all_cases, written_cases

from engines import rtx_steps
from models import load_text, save


def check(cases: Iterable[Case], folder: Path) -> set[str]:
    """Compare each case, which parser, table and emulator must agree on; return the operators."""
    table, seen = parser_steps(), set()
    for case in cases:
        parsed = rtx_steps.parse(case.model)
        if isinstance(parsed, str):
            continue
        layers = [f"{kind} {stored}" for kind, stored in parsed.layers]
        found = [row for row in table["operators"][case.op_type] if row["layers"] == layers]
        assert found, f"{case.op_type} of opset {case.opset} is not in the table: {layers}"
        assert any(case.opset in row["opsets"] for row in found)
        wide, _ = in_fp32(case.model, {})
        for value in wide.graph.output:
            value.type.tensor_type.ClearField("shape")
        wide.graph.node[0].name = "node"
        model = load_model(save(wide, folder))
        for target in PARSED:
            steps = list(own_steps(model, model.proto.graph.node[0], target))
            allowed = [rounding(layers) if row["inside"] == "steps" else [] for row in found]
            assert steps in allowed, f"{case.op_type} of opset {case.opset}: {steps}"
        seen.add(case.op_type)
    return seen


def installed() -> bool:
    """Tell whether the parser of the table is the one that is installed."""
    return bool(parser_steps()["tensorrt_rtx"] == metadata.version("tensorrt_rtx"))


@pytest.mark.skipif(not installed(), reason="the table is of another version of tensorrt_rtx")
def test_operators_of_many_layers_are_as_the_parser_writes_them(tmp_path: Path) -> None:
    """In each form of opsets 11 to 28, with constants and without."""
    seen = check(written_cases(), tmp_path)
    assert seen == {label.split()[0] for label in REAL_SIZES}


@pytest.mark.nightly
@pytest.mark.skipif(not installed(), reason="the table is of another version of tensorrt_rtx")
def test_all_operators_are_as_the_parser_writes_them(tmp_path: Path) -> None:
    """Every operator of the standard that takes floats, in every case that ONNX has of it."""
    seen = check(all_cases(), tmp_path)
    assert seen == parser_steps()["operators"].keys()


@pytest.mark.skipif(not installed(), reason="the table is of another version of tensorrt_rtx")
def test_all_that_the_parser_does_not_know_is_in_the_table() -> None:
    """Operators of sequences, texts and integers, too, which the emulator has no rows for."""
    assert rtx_steps.unknown() <= {*parser_steps()["no_importer"]}


@pytest.mark.skipif(not installed(), reason="the table is of another version of tensorrt_rtx")
@pytest.mark.parametrize("counted", UNKNOWN_FORMS)
def test_the_parser_refuses_the_forms_that_are_named(counted: str, tmp_path: Path) -> None:
    """And takes them with the attribute that is blamed at its default."""
    proto = load_text(UNKNOWN_FORMS[counted], tmp_path, opset=18).proto
    assert isinstance(rtx_steps.parse(proto), str)
    forms = parser_steps()["no_form"].items()
    outer = {node.op_type for node in proto.graph.node}
    for op_type, name in ((op_type, name) for op_type, names in forms for name in names):
        if op_type in outer and f" {op_type} ({name} " in counted:
            default = onnx.defs.get_schema(op_type).attributes[name].default_value
            value = onnx.helper.get_attribute_value(default)
            plain = rtx_steps.with_setting(proto, op_type, name, value)
            assert not isinstance(rtx_steps.parse(plain), str)


@pytest.mark.parametrize(("label", "word"), [("LogSoftmax", "steps"), ("Gemm", "fused")])
def test_the_builder_decides_what_is_one_operation(label: str, word: str) -> None:
    """A Softmax and its logarithm are named one by one; a product takes its bias along."""
    case = next(case for case in written_cases() if case.op_type == label)
    parsed = rtx_steps.parse(case.model)
    assert not isinstance(parsed, str)
    names = rtx_steps.kernels(parsed)
    assert names and word == rtx_steps.inside(parsed, names)
