"""Constants are found, changed wherever they are read, put back, and have their figures."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from constants import LIMITS, changed, todo

REPO = Path(__file__).parents[2]
KEYS = [key for keys, _ in todo() for key in keys]
ROOMS = ("bisect", "strategies", "reports")


@pytest.mark.parametrize("key", KEYS)
def test_a_constant_is_changed_and_put_back(key: str) -> None:
    """No module that imported the name reads the old value while it is changed."""
    module, names = key.split(":")
    before = {name: getattr(import_module(module), name) for name in names.split("+")}
    readers = [
        (each, name)
        for each in sys.modules.values()
        for name, value in before.items()
        if each.__name__.startswith("precision_bisect") and vars(each).get(name) is value
    ]
    with changed([key], 2.0) as values:
        now = dict(zip(before, values, strict=True))
        assert all(repr(before[name]) != repr(value) for name, value in now.items())
        assert all(vars(each)[name] is now[name] for each, name in readers)
    assert all(vars(each)[name] is before[name] for each, name in readers)


def test_the_results_are_of_these_constants() -> None:
    """A constant that was added, renamed or deleted is measured again."""
    found = json.loads((REPO / "benchmarks" / "results" / "constants.json").read_text())
    assert {" ".join(keys) for keys, _ in todo()} == {row["constant"] for row in found["rows"]}
    assert LIMITS in [keys for keys, _ in todo()]


def test_no_constant_is_a_matter_of_taste() -> None:
    """Each says what was measured, or what it is derived from."""
    unfounded = re.compile(
        r";\s+nothing\s+was\s+measured|of\s+taste|no\s+figures\s+of\s+other", re.I
    )
    told = [
        path.relative_to(REPO)
        for room in ROOMS
        for path in (REPO / room).rglob("*.py")
        if unfounded.search(path.read_text(encoding="utf-8"))
    ]
    assert told == []
