"""Evidence as JSON text, for one column of the ledger."""

import json
from dataclasses import asdict
from typing import Any

from precision_bisect.run_folder import plain_json
from precision_bisect.trial import (
    Evidence,
    Honour,
    Latency,
    LayerHonour,
    Listed,
    Opening,
    Stability,
)


def to_text(evidence: Evidence) -> str:
    """Return the evidence as JSON; fields that hold nothing are left out."""
    return json.dumps({key: value for key, value in asdict(evidence).items() if value})


def from_text(text: str) -> Evidence:
    """Return the evidence that `to_text` wrote. Raises ValueError for other text."""
    fields: dict[str, Any] = plain_json.parse(text)
    try:
        latency, stability = fields.get("latency"), fields.get("stability")
        opening = fields.get("opening")
        return Evidence(
            latency=Latency(**latency) if latency else None,
            stability=Stability(**stability) if stability else None,
            honours=tuple(
                LayerHonour(
                    layer=entry["layer"],
                    honour=Honour(entry["honour"]),
                    evidence=entry["evidence"],
                )
                for entry in fields.get("honours", ())
            ),
            notes=tuple(fields.get("notes", ())),
            listed=tuple(
                Listed(note=entry["note"], names=tuple(entry["names"]))
                for entry in fields.get("listed", ())
            ),
            opening=Opening(level=opening["level"], disabled=tuple(opening["disabled"]))
            if opening
            else None,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"evidence {text[:60]!r}") from error
