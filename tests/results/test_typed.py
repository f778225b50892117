"""Files of a run are read into what they are written from, and nothing else is."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beginning import STARTED
from precision_bisect.errors import RunFolderError
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.run_status import read_status
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.runs.typed_json import typed
from precision_bisect.trial import NotFinite, Stability
from run_folders import TOLERANCE, names, result_of, write_status

LAYERS = names(9)
FOUND = result_of(
    LAYERS,
    [2, 5],
    error=math.inf,
    stability=Stability(copies=8, failed=1, error_median=0.1, error_max=math.inf),
    latency_ms={"all_high": 2.0, "all_low": None, "kept": math.inf},
)


def test_a_result_comes_back(tmp_path: Path) -> None:
    """Every field says the same, infinite figures and what follows from others included."""
    (tmp_path / RESULT).write_text(FOUND.to_text(), encoding="utf-8")
    again = read_saved(tmp_path).result
    assert FOUND.to_text() == again.to_text()
    assert (FOUND.error, FOUND.stability, FOUND.certificate, tmp_path) == (
        again.error,
        again.stability,
        again.certificate,
        again.out,
    )
    assert "error inf" in str(again)


OLD = [
    {"layer": LAYERS[2], "needed": True, "how": "dropped", "error": 0.03, "reason": "fails"},
    {
        "layer": LAYERS[5],
        "needed": True,
        "how": "implied",
        "more_kept": 1,
        "reason": "1 more fails",
    },
]


def test_a_certificate_of_the_mode_groups_is_read(tmp_path: Path) -> None:
    """What was dropped alone is proven; what a plan that kept more implied is not any more."""
    told = FOUND.to_json()
    older = {"mode": "groups", "minimal": False, "checked": [LAYERS[2], LAYERS[5]]}
    older |= {"unchecked": [], "assumes": "monotone", "evidence": OLD, "minimal_at_limit": False}
    (tmp_path / RESULT).write_text(json.dumps({**told, "certificate": older}), encoding="utf-8")
    proof = read_saved(tmp_path).result.certificate
    assert ("full", False, False) == (proof.mode, proof.minimal, proof.minimal_by_forecasts)
    assert ([LAYERS[2]], [LAYERS[5]]) == (proof.checked, proof.unchecked)
    assert ["dropped", None] == [need.how for need in proof.evidence]


def test_a_certificate_that_knows_no_forecasts_is_read(tmp_path: Path) -> None:
    """Files of runs before forecasts counted lack the keys for them."""
    told = FOUND.to_json()
    for key in ("predicted", "forecasts", "minimal_by_forecasts"):
        del told["certificate"][key]
    (tmp_path / RESULT).write_text(json.dumps(told), encoding="utf-8")
    assert FOUND.certificate == read_saved(tmp_path).result.certificate


@pytest.mark.parametrize("evidence", [7, [7], [{"how": "group"}], [{"layer": [], "how": {}}]])
def test_a_damaged_certificate_of_older_files_is_an_error(tmp_path: Path, evidence: Any) -> None:
    """Whatever stands in it, the file is called damaged."""
    older = {"mode": "groups", "minimal": False, "evidence": evidence, "checked": 3}
    told = {**FOUND.to_json(), "certificate": older}
    (tmp_path / RESULT).write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_saved(tmp_path)


def test_what_follows_from_other_fields_is_not_believed() -> None:
    """A share that was edited is the true one again."""
    told = {**FOUND.to_json(), "kept_fraction": 0.9}
    assert 2 / 9 == typed(Result, told).kept_fraction


def test_a_status_comes_back(tmp_path: Path) -> None:
    """What stands in the file is what the run has told."""
    write_status(tmp_path, "a.onnx", done=0.5)
    found = read_status(tmp_path)
    started = replace(STARTED, model="a.onnx", tolerance=TOLERANCE)
    assert (started, 0.5, "searching") == (found.run, found.done, found.state)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_what_is_not_finite_is_a_float(text: str) -> None:
    """It compares, prints, pickles and is written as the float that its text spells."""
    figure = NotFinite(text)
    assert math.isnan(figure) if text == "nan" else float(text) == figure
    assert (text, text, text) == (str(figure), f"{figure:.3g}", plain_json.plain(figure))
    assert pickle.loads(pickle.dumps(figure)) is figure


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": "\ud800"}, "surrogates not allowed"),
        ({"\ud800": 1}, "surrogates not allowed"),
        ({"status": "x" * 9999}, r"^invalid enum value 'x+…x+' - at `\$\.status`$"),
        ({"trials": -1}, r"^expected `int` >= 0 - at `\$\.trials`$"),
        ({"error": "much"}, r"^invalid enum value 'much' - at `\$\.error`$"),
        ({"rungs": [{"precision": "fp32"}]}, r"`layers` - at `\$\.rungs\[0\]`$"),
    ],
)
def test_what_does_not_fit_is_told_shortly(change: dict[str, Any], says: str) -> None:
    """The reason has the place, and no more of the value than a line holds."""
    with pytest.raises(ValueError, match=says) as error:
        typed(Result, {**FOUND.to_json(), **change})
    assert len(str(error.value)) < 200


def test_numbers_that_no_float_holds_are_refused() -> None:
    """Whatever formats a whole number of a file can rely on it."""
    assert [10**299] == plain_json.parse(json.dumps([10**299]))
    with pytest.raises(ValueError, match="too many digits"):
        plain_json.parse(json.dumps([10**300]))
