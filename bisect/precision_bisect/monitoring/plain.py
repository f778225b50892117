"""Events as plain JSON values."""

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from precision_bisect.run_folder import plain_json
from precision_bisect.search.events import Event
from precision_bisect.trial import Outcome, Proposal


def record(event: Event) -> dict[str, Any]:
    """Return the kind of an event and all its fields; what a trial is and showed side by side."""
    kind = re.sub(r"(?<=.)([A-Z])", r"_\1", type(event).__name__).lower()
    found: dict[str, Any] = {"event": kind}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Proposal):
            found |= asked(value)
        elif isinstance(value, Outcome):
            found |= shown(value)
        else:
            found[field.name] = plain(value)
    return found


def asked(proposal: Proposal) -> dict[str, Any]:
    """Return what a trial evaluates: `kept` is the number of layers, `plan` the plan's key."""
    return {
        "kept": len(proposal.plan),
        "plan": proposal.plan.key,
        "phase": proposal.phase.value,
        "samples": proposal.samples.value,
        "kind": proposal.kind.value,
        "draw": proposal.draw,
        "timed": proposal.timed,
        "reason": proposal.reason,
        "narrowed_to": proposal.narrowed_to,
        "about_left": proposal.about_left,
    }


def shown(outcome: Outcome) -> dict[str, Any]:
    """Return what a trial showed; what the build showed of each layer is in the ledger only."""
    latency = outcome.evidence.latency
    return {
        "status": outcome.status.value,
        "verdict": None if outcome.verdict is None else outcome.verdict.value,
        "error": plain(outcome.error),
        "message": outcome.message,
        "wall_s": plain(outcome.wall_s),
        "latency_ms": None if latency is None else plain(latency.median_ms),
        "speedup": None if latency is None else plain(latency.speedup),
    }


def plain(value: Any) -> Any:
    """Return the value as what JSON can hold; figures that are not finite become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def to_bytes(values: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8, and a line break.

    Paths may hold bytes that are no Unicode; they are escaped as JSON escapes a lone surrogate.
    """
    text = plain_json.dumps(values, allow_nan=False, indent=indent)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"
