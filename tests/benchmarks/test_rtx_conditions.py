"""What the tool pins for TensorRT-RTX's sake is what builds of every newer operator show."""

import json
from typing import Any

import onnx
import pytest
from engines import rtx_conditions
from engines.operator_models import cases_by_operator, newer_operators, with_constants

from precision_bisect.backends.tensorrt.flavour import WITHOUT_KERNEL
from precision_bisect.graphs.interface import AT_THE_BORDER
from precision_bisect.graphs.typed.layout import NO_BF16, NOT_PARSED
from zoo.networks import ROOT

RESULT = ROOT / "benchmarks" / "results" / "rtx_conditions.json"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The rows of the result."""
    found: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    return found


def test_the_pinned_operators_are_those_that_fail(rows: list[dict[str, Any]]) -> None:
    """Every operator that fails in a form is pinned for that, and no other one is."""
    failed: dict[bool, set[str]] = {True: set(), False: set()}
    for row in rows:
        for form, why in row["forms"].items():
            if why:
                failed[rtx_conditions.FORMS[form].low == "bf16"].add(row["operator"])
    assert AT_THE_BORDER | NOT_PARSED == failed[False]
    assert AT_THE_BORDER | NOT_PARSED | NO_BF16 | {WITHOUT_KERNEL["bf16"]} == failed[True]


def test_what_is_written_is_built(rows: list[dict[str, Any]]) -> None:
    """With the pins every form is built."""
    assert [] == [(row["operator"], row["pinned"]) for row in rows if any(row["pinned"].values())]


def test_every_newer_operator_is_in_the_result(rows: list[dict[str, Any]]) -> None:
    """Operators of the installed onnx with a newer version and a case with FP32 are all there."""
    if onnx.__version__ not in json.loads(RESULT.read_text(encoding="utf-8"))["versions"]:
        pytest.skip("the result is of another onnx")
    newer = newer_operators().keys() & cases_by_operator().keys()
    assert newer == {row["operator"] for row in rows}


@pytest.mark.parametrize("operator", sorted(AT_THE_BORDER | NOT_PARSED))
def test_the_result_is_what_builds_show(rows: list[dict[str, Any]], operator: str) -> None:
    """Of what is pinned in FP16 the first case is built again, with and without the pins."""
    pytest.importorskip("tensorrt_rtx")
    first = next(row for row in rows if row["operator"] == operator)
    name, case, values = cases_by_operator()[operator][0]
    alone, fed = with_constants(case, values, whole=True)
    assert (name, fed) == (first["case"], first["fed"])
    assert rtx_conditions.one(alone, "low", pins=False) == first["forms"]["low"] != ""
    assert rtx_conditions.one(alone, "low", pins=True) == ""
