"""What the tool pins for TensorRT-RTX's sake is what builds of every newer operator show."""

import json
from typing import Any

import onnx
import pytest
from engines.operator_models import cases_by_operator, newer_operators, with_constants
from engines.rtx_conditions import RESULT, Row, conditions

from engines import rtx_conditions
from precision_bisect.backends.tensorrt.flavour import WITHOUT_KERNEL
from precision_bisect.graphs.interface import AT_THE_BORDER
from precision_bisect.graphs.typed.layout import NOT_PARSED
from precision_bisect.settings.targets import parser_conditions


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The rows of the result."""
    found: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    return found


def test_the_tool_reads_what_the_builds_showed(rows: list[dict[str, Any]]) -> None:
    """What fails in a form is in the product's data; what only the builder lacks is its own."""
    read, found = parser_conditions(), conditions([Row(**row) for row in rows])
    assert [read[name] for name in ("refused", "at_the_border")] == [
        found[name] for name in ("refused", "at_the_border")
    ]
    failed = {row["operator"] for row in rows if any(row["forms"].values())}
    told = {*read["refused"]["bf16"], *read["at_the_border"], WITHOUT_KERNEL["bf16"]}
    assert told == failed


def test_what_is_written_is_built(rows: list[dict[str, Any]]) -> None:
    """With the pins every form is built."""
    assert [] == [(row["operator"], row["pinned"]) for row in rows if any(row["pinned"].values())]


def test_every_newer_operator_is_in_the_result(rows: list[dict[str, Any]]) -> None:
    """Operators of the installed onnx with a newer version and a case with FP32 are all there."""
    if onnx.__version__ not in json.loads(RESULT.read_text(encoding="utf-8"))["versions"]:
        pytest.skip("the result is of another onnx")
    newer = newer_operators().keys() & cases_by_operator().keys()
    assert newer == {row["operator"] for row in rows}


@pytest.mark.parametrize("operator", sorted({*AT_THE_BORDER, *NOT_PARSED["fp16"]}))
def test_the_result_is_what_builds_show(rows: list[dict[str, Any]], operator: str) -> None:
    """Of what is pinned in FP16 the first case is built again, with and without the pins."""
    pytest.importorskip("tensorrt_rtx")
    first = next(row for row in rows if row["operator"] == operator)
    name, case, values = cases_by_operator()[operator][0]
    alone, fed = with_constants(case, values, whole=True)
    assert (name, fed) == (first["case"], first["fed"])
    assert rtx_conditions.one(alone, "low", pins=False) == first["forms"]["low"] != ""
    assert rtx_conditions.one(alone, "low", pins=True) == ""
