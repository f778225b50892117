"""Files of a run are read into what they are written from, and nothing else is."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beginning import STARTED
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.run_status import RunStatus
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import RESULT, STATUS
from precision_bisect.runs.typed_json import read_file, typed
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


def test_what_follows_from_other_fields_is_not_believed() -> None:
    """A share that was edited is the true one again."""
    told = {**FOUND.to_json(), "kept_fraction": 0.9}
    assert 2 / 9 == typed(Result, told).kept_fraction


def test_a_status_comes_back(tmp_path: Path) -> None:
    """What stands in the file is what the run has told."""
    write_status(tmp_path, "a.onnx", done=0.5)
    found = read_file(RunStatus, tmp_path / STATUS)
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
