"""`result.json` against its published schema, read by nothing of this package."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from effort import nightly
from precision_bisect.runs.monitoring.events import Event, TrialFinished
from precision_bisect.runs.results.endings import Status

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json.loads((DOCS / "result.schema.json").read_text())
DIAGNOSIS = json.loads((DOCS / "diagnosis.schema.json").read_text())
PARTS = {**SCHEMA["$defs"], **DIAGNOSIS["$defs"]}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def is_a(kind: str, value: Any) -> bool:
    """Tell whether a JSON value is of a type; true is no number."""
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def objections(value: Any, schema: dict[str, Any], where: str = "$") -> Iterator[str]:
    """Yield what of a value the schema does not allow: the part of JSON Schema that ours uses."""
    if "$ref" in schema:
        yield from objections(value, PARTS[schema["$ref"].rpartition("/")[2]], where)
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is {value!r}"
    if "anyOf" in schema and all(any(objections(value, each)) for each in schema["anyOf"]):
        yield f"{where} is none of what it may be: {value!r}"
    kinds = schema.get("type", [])
    if kinds and not any(is_a(k, value) for k in ([kinds] if isinstance(kinds, str) else kinds)):
        yield f"{where} is no {kinds}: {value!r}"
        return
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where} is {value}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{where} is {value}"
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            yield from objections(each, schema["items"], f"{where}[{number}]")
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        yield from (
            f"{where} lacks {key}" for key in schema.get("required", ()) if key not in value
        )
        for key, each in value.items():
            yield from objections(each, properties.get(key, others), f"{where}.{key}")


def interrupting(number: int) -> Any:
    """Return an observer that interrupts at that trial."""
    left = [number]

    def observe(event: Event) -> None:
        left[0] -= isinstance(event, TrialFinished)
        if left[0] == 0:
            left[0] = -1
            raise KeyboardInterrupt

    return observe


RUNS: dict[str, dict[str, Any]] = {
    "found": {},
    "nothing_to_keep": {"tol": 1e9},
    "budget_exhausted": {"max_trials": 4},
    "interrupted": {"observer": interrupting(8)},
    "stopped": {"until": "curve"},
}


@pytest.mark.parametrize(
    "status",
    [
        *("found", "budget_exhausted"),
        *nightly("nothing_to_keep", "interrupted", "stopped"),
    ],
)
def test_runs_of_every_ending_fit_the_schema(status: str, tmp_path: Path) -> None:
    """What a run has written is what the schema says, key by key."""
    tiny.search(tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run", **RUNS[status])
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert status == told["status"]
    assert [] == list(objections(told, SCHEMA))
    if (diagnosis := tmp_path / "run" / "diagnosis.json").exists():
        assert [] == list(objections(json.loads(diagnosis.read_text()), DIAGNOSIS))


def test_a_run_whose_reference_is_not_finite_fits_the_schema(tmp_path: Path) -> None:
    """Neither has one that is no question of precision."""
    model = tiny.write_model(tmp_path / "tiny.onnx", scale=float("inf"))
    tiny.search(model, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "not_precision" == told["status"]
    assert [] == list(objections(told, SCHEMA))


@pytest.mark.parametrize("status", [Status.INFEASIBLE, Status.ABORTED])
def test_endings_that_need_an_engine_fit_the_schema(status: Status, tmp_path: Path) -> None:
    """So does what an engine too slow, or crash after crash, ends with."""
    found = tiny.search(tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run")
    told = replace(found, status=status, kept=(), rungs=(), error=float("inf")).to_json()
    assert [] == list(objections(json.loads(json.dumps(told)), SCHEMA))


def test_the_schemas_are_what_files_are_written_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that comes into a result comes into its schema, by docs/make_schema.py."""
    monkeypatch.syspath_prepend(DOCS)
    for name, content in importlib.import_module("make_schema").pages().items():
        assert content == (DOCS / name).read_text()


def test_what_does_not_fit_is_seen(tmp_path: Path) -> None:
    """A missing key, a wrong type, and a figure below its least are objections."""
    tiny.search(tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    for odd in ({"kept": "x"}, {"trials": -1}, {"error": "much"}, {"emulated": 1}):
        assert [] != list(objections({**told, **odd}, SCHEMA))
    del told["advice"]
    assert ["$ lacks advice"] == list(objections(told, SCHEMA))
