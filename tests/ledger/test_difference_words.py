"""What a run cannot be resumed with is said in the words of flags."""

from typing import Any

import pytest

from precision_bisect.runs.ledger.fingerprint import difference_words

HASH, OTHER = "a" * 64, "b" * 64
LIMITS = {"y": 0.01, "z": 0.01}
ELEMENTWISE = {"metric": "elementwise", "atol": LIMITS, "rtol": LIMITS}
BEGUN = {
    "model": HASH,
    "layers": HASH,
    "inputs": HASH,
    "copies": [16, 0],
    "low": "fp16",
    "engine": {"typing": "auto", "optimization_level": None},
    "comparator": ELEMENTWISE,
    "versions": {"numpy": "1.26", "operators of lib.so": HASH},
}


def comparator(**changed: dict[str, float]) -> dict[str, Any]:
    """Return the fingerprint of the elementwise comparator with other limits."""
    return {"comparator": {**ELEMENTWISE, **changed}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"model": OTHER, "layers": OTHER}, "another model"),
        ({"inputs": OTHER}, "other inputs"),
        ({"copies": [0, 0]}, "--copies was 16, now 0"),
        ({"reference": HASH}, "another --reference"),
        (
            {"engine": {"typing": "auto", "optimization_level": 5}},
            "--builder-optimization-level was not given, now 5",
        ),
        (
            {"versions": {"numpy": "2.0", "operators of lib.so": OTHER}},
            "numpy was 1.26, now 2.0, other operators of lib.so",
        ),
        (comparator(atol={"y": 0.01}, rtol={"y": 0.01}, classes={"z": 0.02}), "other limits"),
        (
            {**comparator(atol={"c": 0.1}, rtol={"c": 0.1}), "model": OTHER},
            "another model",
        ),
        (
            {"loop": {"steps": 9, "feeds": [["y", "x", "", -1]], "each_step": False}},
            "other --feed, --steps was not given, now 9",
        ),
        (
            {"loop": {"loop": "loop.py:f", "script": HASH}},
            "--loop was not given, now loop.py:f, other script of --loop",
        ),
        (
            {"model": OTHER, "inputs": OTHER, "copies": [0, 1], "low": "bf16"},
            "another model, other inputs, --copies was 16, now 0 and 2 more",
        ),
    ],
)
def test_differences_are_told_by_flag(changed: dict[str, Any], said: str) -> None:
    """At most three, limits of all outputs once, and no keys, hashes or absent outputs."""
    assert said == difference_words(BEGUN, {**BEGUN, **changed}, {}, {})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"atol": 0.1}, "--atol was not given, now 0.1"),
        ({"tol": {"": 0.01, "y": 1.0}}, "--tol was 0.01, now 0.01,y=1"),
        ({"metric": "l2", "max_trials": 9}, "--metric was elementwise, now l2"),
    ],
)
def test_what_judges_is_told_as_it_was_given(asked: dict[str, Any], said: str) -> None:
    """Once for all outputs, whatever limits follow from it; other options tell nothing."""
    options = {"tol": 0.01, "metric": "elementwise", "max_trials": None}
    other = {**BEGUN, **comparator(atol={"y": 0.1, "z": 0.1}, rtol={"y": 0.2, "z": 0.2})}
    assert said == difference_words(BEGUN, other, options, {**options, **asked})
