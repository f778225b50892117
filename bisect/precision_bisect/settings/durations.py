"""Durations on the command line."""

import re

from precision_bisect.errors import UsageError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Return the seconds that `90`, `90s`, `15m` or `8h` stand for. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise UsageError(f"cannot read the time {text!r}", "write 90, 90s, 15m or 8h")
    return float(match[1]) * _UNITS[match[2]]
