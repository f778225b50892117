"""Why each layer of a ladder can go no lower: diagnosis.json, and who shows it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_bisect
from ladder_model import samples, write
from models import normal, parse, save, with_weights
from precision_bisect.commandline.main import main
from precision_bisect.precisions import PrecisionName
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import view_of

LADDER: tuple[PrecisionName, ...] = ("int8", "fp16", "fp32")
LARGE = """(float[8,32] x) => (float[8,16] y) <float l = {0.00002}> {
    [first] a = MatMul(x, w1)
    [large] b = MatMul(a, w2)
    [down] c = Mul(b, l)
    [third] y = MatMul(c, w3) }"""


def climb(model: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Search a ladder and return what its diagnosis.json holds."""
    settings = {"tol": 0.1, "ladder": LADDER, "backend": "emulated", "threads": 1, **options}
    precision_bisect.find(model, inputs=samples(), out=out, **settings)
    found: dict[str, Any] = json.loads((out / "diagnosis.json").read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a ladder that needs every rung."""
    made = tmp_path_factory.mktemp("ladder")
    climb(write(made), made / "run")
    return made / "run"


@pytest.fixture(scope="module")
def entries(folder: Path) -> list[dict[str, Any]]:
    """Return the layers that the diagnosis of that run explains."""
    layers: list[dict[str, Any]] = json.loads((folder / "diagnosis.json").read_text())["layers"]
    return layers


def test_each_rung_is_explained_in_its_own_types(entries: list[dict[str, Any]]) -> None:
    """The outliers cannot be INT8 and are FP16, the overflows cannot be FP16 and are FP32."""
    kept = [each for each in entries if each["kept"]]
    assert [
        ("second", "int8", "fp16", "outliers"),
        ("square", "fp16", "fp32", "overflow"),
        ("root", "fp16", "fp32", "overflow"),
    ] == [(each["layer"], each["low"], each["high"], each["cause"]) for each in kept]
    assert [True, False, False] == [each["histogram"]["scaled"] for each in kept]
    assert all(each["figures"]["drop_error"] > 0.1 for each in kept)
    assert ["third", "third", "third"] == [each["hurts"]["path"][-1] for each in kept]


def test_borderline_layers_are_of_their_rung(entries: list[dict[str, Any]]) -> None:
    """What nearly could not be INT8 says how much of the tolerance it takes."""
    near = {each["layer"]: each for each in entries if not each["kept"]}
    assert {"first", "third"} == near.keys()
    for each in near.values():
        assert ("int8", "fp16") == (each["low"], each["high"])
        assert each["figures"]["share"] == pytest.approx(each["figures"]["alone_error"] / 0.1)


def test_result_and_diagnosis_agree(folder: Path, entries: list[dict[str, Any]]) -> None:
    """result.json has the cause and evidence of each kept layer, as the diagnosis has."""
    result = json.loads((folder / "result.json").read_text())
    told = [(each["layer"], each["evidence"]) for each in entries if each["kept"]]
    assert told == [(each["layer"], each["evidence"]) for each in result["diagnosis"]]


def test_explain_and_the_report_show_it(
    folder: Path, entries: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The text names the type where it is not the lowest; the page has every entry."""
    assert 0 == main(["explain", str(folder)])
    text = capsys.readouterr().out
    assert "outliers: input reaches 788" in text
    assert "overflow (fp16): output reaches 2.27e+05" in text
    seen = view_of(read_source(folder), folder)
    assert [each["low"] for each in entries] == [each["low"] for each in seen["diagnosis"]]
    assert "fp16" == seen["sensitivity"]["low"]


def test_a_layer_in_the_highest_type_tells_of_the_lowest_too(tmp_path: Path) -> None:
    """A product that overflows FP16 has a form in INT8: that is told as untried."""
    weights = {
        "w1": normal(32, 32, seed=1) / np.float32(6),
        "w2": normal(32, 32, seed=2) * np.float32(1e4),
        "w3": normal(32, 16, seed=3) / np.float32(4),
    }
    path = save(with_weights(parse(LARGE), weights), tmp_path)
    layers = climb(path, tmp_path / "run", tol=0.5)["layers"]
    found = {(each["layer"], each["low"]): each for each in layers if each["kept"]}
    assert "overflow" == found["large", "fp16"]["cause"]
    below = found["large", "int8"]
    assert ("fp32", True) == (below["high"], below["histogram"]["scaled"])
    assert "it is fp32 for another reason, and was not tried in int8" in below["evidence"]
    assert [each["low"] for each in layers if each["layer"] == "large"] == ["fp16", "int8"]
    assert ("down", "int8") not in found


def test_a_ladder_that_is_cut_short_explains_what_it_has(tmp_path: Path) -> None:
    """A rung without an answer is left out, and the file is there."""
    found = climb(write(tmp_path), tmp_path / "run", max_trials=1)
    assert (1, "int8") == (found["schema"], found["low"])
    assert not any(found[key] for key in ("layers", "spread", "advice", "selections"))
