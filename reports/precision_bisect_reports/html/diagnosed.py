"""What `diagnosis.json` says, by layer; it is optional, and what is odd in it is left out."""

from collections.abc import Mapping
from typing import Any

from precision_bisect.results.result import WITHOUT_IT
from precision_bisect_reports.html.source import Source

_PARTS = ("inputs", "outputs", "weights")


def diagnosed(source: Source, index: Mapping[str, int]) -> dict[str, Any]:
    """Return `diagnosis` with an entry per layer, `spread` and `advice`; `index` knows layers."""
    told = source.diagnosis
    return {
        "diagnosis": [
            {
                "layer": index[entry["layer"]],
                "kept": entry.get("kept") is not False,
                "low": _text(entry.get("low")),
                "high": _text(entry.get("high")),
                "cause": _text(entry.get("cause")),
                "evidence": _evidence(entry.get("evidence")),
                "figures": _figures(entry.get("figures")),
                "histogram": _histogram(entry.get("histogram")),
                "hurts": _hurts(entry.get("hurts")),
            }
            for entry in _objects(told.get("layers"))
            if isinstance(entry.get("layer"), str) and entry["layer"] in index
        ],
        "spread": _objects(told.get("spread")),
        "advice": _objects(told.get("advice")),
    }


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _evidence(value: Any) -> str | None:
    """Return the evidence without the error of dropping the layer, which the proof has."""
    return value.partition(WITHOUT_IT)[0] if isinstance(value, str) else None


def _figures(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {name: each for name, each in value.items() if isinstance(each, int | float | str)}


def _hurts(value: Any) -> dict[str, Any] | None:
    """Return the output that a layer hurts most, by how much, and the layers on the way."""
    if not isinstance(value, dict) or not isinstance(value.get("path"), list):
        return None
    path = [name for name in value["path"] if isinstance(name, str)]
    errors = value.get("errors")
    known = isinstance(errors, list) and len(errors) == len(value["path"]) == len(path)
    return {
        "output": _text(value.get("output")),
        "error": value.get("error"),
        "path": path,
        "errors": errors if known else [],
    }


def _histogram(value: Any) -> dict[str, Any] | None:
    """Return counts by power of two, the lowest exponent first; None for anything else."""
    if not isinstance(value, dict) or not isinstance(value.get("lowest_exponent"), int):
        return None
    told = value.get("counts")
    if not isinstance(told, dict):
        return None
    counts = {part: told[part] for part in _PARTS if _all_counts(told.get(part))}
    if not counts:
        return None
    scaled = value.get("scaled") is True
    return {"lowest_exponent": value["lowest_exponent"], "scaled": scaled, "counts": counts}


def _all_counts(value: Any) -> bool:
    return isinstance(value, list) and any(value) and all(isinstance(n, int) for n in value)
