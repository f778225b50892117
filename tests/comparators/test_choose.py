"""Flags become limits, and limits that cannot work are refused by name."""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from precision_bisect.errors import UsageError
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.metrics import METRICS
from precision_bisect.judging.comparators.polygraphy_plugin import (
    PolygraphyComparator,
    Tolerance,
    by_polygraphy,
    tolerance_from,
)
from precision_bisect.options import Options
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.settings.reading import parse_limits
from precision_bisect.trial import Verdict


def chosen(**flags: Any) -> PolygraphyComparator:
    """Return the comparator for a model with the outputs y and z."""
    comparator = choose_comparator(Options(model=Path("m.onnx"), **flags), ["y", "z"])
    assert isinstance(comparator, PolygraphyComparator)
    return comparator


def test_every_metric_can_be_asked_for() -> None:
    """A metric is its entry in METRICS and one of the entry points: no flag misses it."""
    entries = installed(COMPARATORS).items()
    assert METRICS.keys() == {name for name, entry in entries if entry.load() is by_polygraphy}


@pytest.mark.parametrize(
    ("flags", "atol", "rtol", "tolerance"),
    [
        ({}, 1e-2, 1e-2, 1e-2),
        ({"tol": 0.05}, 0.05, 0.05, 0.05),
        ({"tol": 0.0999}, 0.0999, 0.0999, 0.0999),
        ({"tol": 0.1}, 0.1, 0.0, 0.1),
        ({"tol": 0.5}, 0.5, 0.0, 0.5),
        ({"tol": 1, "metric": "max"}, 1.0, 0.0, 1.0),
        ({"tol": {"y": 1, "": 0.01}}, 1.0, 0.0, 1.0),
        ({"tol": {"z": 1, "": 0.01}}, 0.01, 0.01, 1.0),
        ({"tol": 0.01, "atol": {"y": 1}}, 1.0, 0.0, 1.0),
        ({"tol": 0.01, "atol": {"z": 1}}, 0.01, 0.01, 1.0),
        ({"tol": 0.01, "rtol": {"y": 0.5}}, 0.0, 0.5, 1.0),
        ({"tol": {"y": 0.02, "": 0.01}, "atol": {"y": 1}}, 1.0, 0.02, 1.0),
        ({"tol": 1, "rtol": 1}, 1.0, 1.0, 1.0),
        ({"atol": 0.1}, 0.1, 0.0, 0.1),
        ({"rtol": 0.1}, 0.0, 0.1, 0.1),
        ({"atol": 0.1, "rtol": 0.2}, 0.1, 0.2, 1.0),
        ({"tol": 0.1, "rtol": 0.2}, 0.1, 0.2, 1.0),
        ({"metric": "psnr", "tol": 40.0}, 40.0, 0.0, 40.0),
    ],
)
def test_limits_come_from_the_flags(
    flags: dict[str, Any], atol: float, rtol: float, tolerance: float
) -> None:
    """Each limit is its own flag's, else --tol's, which from 0.1 on says nothing relative."""
    comparator = chosen(**flags)
    assert (comparator.atol.of("y"), comparator.rtol.of("y")) == (atol, rtol)
    assert comparator.tolerance == tolerance


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"atol": 0, "rtol": 0}, "no tolerance above zero"),
        ({"tol": 1, "atol": 0}, "give it one by --atol or --rtol, as --atol y=0.01"),
        ({"atol": {"y": 0.1}}, "output 'z' has no tolerance above zero"),
        ({"metric": "l2"}, "no default tolerance"),
        ({"metric": "cosine"}, "no default tolerance"),
        ({"metric": "psnr"}, "no default tolerance"),
        ({"metric": "snr"}, "no default tolerance"),
        ({"metric": "l2", "rtol": 0.1}, "no relative limit"),
        ({"metric": "snr", "tol": 20, "rtol": 0.1}, "no relative limit"),
        ({"metric": "l2", "atol": 0}, "needs a limit above zero"),
        ({"metric": "cosine", "tol": 0.997}, "--tol 0.003"),
        ({"metric": "cosine", "tol": 0.5}, "below 0.5"),
        ({"quantile": 0.0}, "not above zero"),
        ({"quantile": 1.5}, "above 1"),
        ({"tol": 0.0}, "--tol 0.0 is not above zero"),
        ({"tol": -1.0}, "--tol -1.0 is not above zero"),
        ({"tol": math.nan}, "--tol nan is not above zero"),
        ({"tol": math.inf}, "not finite"),
        ({"tol": "1e-2"}, "give a number, or a dict of numbers by output name"),
        ({"tol": True}, "give a number"),
        ({"atol": -1.0}, "--atol -1.0 is no number from zero up"),
        ({"atol": math.nan}, "--atol nan is no number"),
        ({"rtol": math.inf}, "--rtol inf is not finite"),
        ({"tol": {"y": 0.1}}, "no tolerance is given for output 'z'"),
        ({"tol": {"": 0.1, "q": 0.1}}, "its outputs are y, z"),
        ({"rtol": {"q": 0.1, "": 0.1}}, "'q'"),
        ({"check": "nowhere.py"}, "names no function"),
        ({"check": "nowhere.py:f"}, "no such script"),
        ({"check": "a.py:f", "tol": {"y": 0.1}}, "one number"),
        ({"check": "a.py:f", "atol": 0.1}, "--tol"),
    ],
)
def test_what_cannot_work_is_refused(flags: dict[str, Any], says: str) -> None:
    """Every refusal says in one line which flag and what to do."""
    with pytest.raises(UsageError) as refused:
        chosen(**flags)
    assert says in refused.value.one_line()
    assert refused.value.hint or flags.get("quantile") is not None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1e-2"], {"": 1e-2}),
        (["y=1,z=2"], {"y": 1.0, "z": 2.0}),
        (["1", "y=2"], {"": 1.0, "y": 2.0}),
        (["a=b=3"], {"a=b": 3.0}),
    ],
)
def test_limits_are_parsed(texts: list[str], expected: dict[str, float]) -> None:
    """Bare numbers are the default; the last equals sign ends a name."""
    assert parse_limits(texts, "--tol") == expected


@pytest.mark.parametrize("text", ["", "x", "y=", "1e-2,", "y=1e", "=1"])
def test_text_is_no_limit(text: str) -> None:
    """What is no number is quoted back with its flag."""
    with pytest.raises(UsageError, match="--tol cannot read"):
        parse_limits([text], "--tol")


def test_numbers_of_numpy_are_numbers() -> None:
    """A limit may be a NumPy scalar."""
    assert tolerance_from(cast("float", np.float32(0.5))) == Tolerance(default=0.5)


def script(path: Path, body: str) -> str:
    """Write a check and return the value for --check."""
    file = path / "metric.py"
    file.write_text(f"import sys\nimport numpy as np\ndef f(outputs, reference):\n    {body}\n")
    return f"{file}:f"


SAMPLES = [{"y": np.array([1.0, 2.0], np.float32)}]


@pytest.mark.parametrize(
    ("body", "tol", "verdict", "error"),
    [
        ("return float(abs(outputs[0]['y'] - reference[0]['y']).max())", 0.1, "pass", 0.0),
        ("return 0.2", 0.1, "fail", 0.2),
        ("return 0.1", 0.1, "pass", 0.1),
        ("return np.float32(0.25)", 0.25, "pass", 0.25),
        ("return 3", 0, "fail", 3.0),
        ("return 0", 0, "pass", 0.0),
        ("return float('nan')", 0.1, "fail", math.inf),
        ("return float('inf')", 0.1, "fail", math.inf),
        ("return True", None, "pass", None),
        ("return np.bool_(False)", None, "fail", None),
    ],
)
def test_a_script_decides(
    tmp_path: Path, body: str, tol: float | None, verdict: str, error: float | None
) -> None:
    """A figure passes when it is at most the limit, a bool as it says, NaN and Inf never."""
    options = Options(model=Path("m.onnx"), check=script(tmp_path, body), tol=tol)
    judgement = choose_comparator(options, ["y"]).judge(SAMPLES, SAMPLES)
    assert (judgement.verdict, judgement.error) == (verdict, error)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return None", "returned NoneType"),
        ("return 0.5", "no limit for it"),
        ("raise RuntimeError('no labels')", "no labels"),
        ("sys.exit(3)", "failed: 3"),
    ],
)
def test_a_script_that_fails_is_the_users_error(tmp_path: Path, body: str, says: str) -> None:
    """What goes wrong inside the user's function ends the run with one line about it."""
    options = Options(model=Path("m.onnx"), check=script(tmp_path, body))
    with pytest.raises(UsageError) as failed:
        choose_comparator(options, ["y"]).judge(SAMPLES, SAMPLES)
    assert says in failed.value.message


def test_a_script_never_sees_bad_values(tmp_path: Path) -> None:
    """NaN and Inf fail before the function could say yes, and no samples are an error."""
    options = Options(model=Path("m.onnx"), check=script(tmp_path, "return True"))
    comparator = choose_comparator(options, ["y"])
    for bad in (math.nan, math.inf):
        outputs = [{"y": np.array([1.0, bad], np.float32)}]
        assert comparator.judge(outputs, outputs).verdict is Verdict.FAIL
    with pytest.raises(ValueError, match="0 outputs"):
        comparator.judge([], [])


def test_a_script_cannot_change_the_reference(tmp_path: Path) -> None:
    """The function works on copies, so that later trials are judged by the same reference."""
    check = script(tmp_path, "reference[0]['y'][:] = 0; return True")
    choose_comparator(Options(model=Path("m.onnx"), check=check), ["y"]).judge(SAMPLES, SAMPLES)
    assert SAMPLES[0]["y"].tolist() == [1.0, 2.0]
