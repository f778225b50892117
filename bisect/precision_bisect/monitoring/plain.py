"""Events as plain JSON values."""

import re
from typing import Any

from precision_bisect.results.run_status import Asked, Shown
from precision_bisect.run_folder import plain_json
from precision_bisect.search.events import Event, TrialFinished, TrialStarted


def record(event: Event) -> dict[str, Any]:
    """Return the kind of an event and all its fields; what a trial is and showed side by side."""
    kind = re.sub(r"(?<=.)([A-Z])", r"_\1", type(event).__name__).lower()
    match event:
        case TrialStarted():
            told = plain_json.plain(Asked.of(event.proposal))
        case TrialFinished():
            told = plain_json.plain(Shown.by(event.proposal, event.outcome))
            told["recalled"] = event.recalled
        case _:
            told = plain_json.plain(event)
    return {"event": kind, **told}


def to_bytes(values: Any, *, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8, and a line break.

    Paths may hold bytes that are no Unicode; they are escaped as JSON escapes a lone surrogate.
    """
    text = plain_json.dumps(values, indent=indent)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"
