"""What `diagnosis.json` says, by layer; it is optional."""

from collections.abc import Mapping
from typing import Any

from precision_bisect.diagnosis.findings import Finding, Findings, Histogram, Hurt

_PARTS = ("inputs", "outputs", "weights")


def diagnosed(told: Findings | None, index: Mapping[str, int]) -> dict[str, Any]:
    """Return `diagnosis` with an entry per layer, `spread` and `advice`; `index` knows layers."""
    if told is None:
        return {"diagnosis": [], "spread": [], "advice": []}
    return {
        "diagnosis": [
            _entry(each, index[each.layer]) for each in told.layers if each.layer in index
        ],
        "spread": told.spread,
        "advice": told.advice,
    }


def _entry(told: Finding, layer: int) -> dict[str, Any]:
    """Return a finding."""
    return {
        "layer": layer,
        "kept": told.kept,
        "low": told.low,
        "high": told.high,
        "cause": told.cause,
        "evidence": told.evidence,
        "figures": {
            name: each
            for name, each in told.figures.items()
            if isinstance(each, int | float | str)
        },
        "histogram": told.histogram and _histogram(told.histogram),
        "hurts": told.hurts and _hurts(told.hurts),
    }


def _hurts(told: Hurt) -> dict[str, Any]:
    """Return the output that a layer hurts most, by how much, and the layers on the way."""
    known = len(told.errors) == len(told.path)
    return {
        "output": told.output,
        "error": told.error,
        "path": told.path,
        "errors": told.errors if known else [],
    }


def _histogram(told: Histogram) -> dict[str, Any] | None:
    """Return counts by power of two, the lowest exponent first; None where nothing was counted."""
    counts = {part: told.counts[part] for part in _PARTS if any(told.counts.get(part, ()))}
    if not counts:
        return None
    return {"lowest_exponent": told.lowest_exponent, "scaled": told.scaled, "counts": counts}
