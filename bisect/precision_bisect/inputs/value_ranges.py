"""Between which values an input may lie: `--range t=0:999`."""

import math
from collections.abc import Iterable, Mapping, Sequence

from precision_bisect.errors import UsageError

Ranges = Mapping[str, tuple[float, float]]


_WRITE = "write --range INPUT=0:999, the lower end first"


def parse_ranges(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Parse `t=0:999` items, comma separated or repeated. Raises UsageError for anything else."""
    found: dict[str, tuple[float, float]] = {}
    for item in (part for text in texts for part in text.split(",")):
        name, _, ends = item.rpartition("=")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError as error:
            raise UsageError(f"--range cannot read {item!r}", _WRITE) from error
        if not name:
            raise UsageError(f"--range {item!r} names no input", _WRITE)
        if name in found:
            raise UsageError(f"--range is given twice for {name!r}", "keep one")
        found[name] = low, high
    return found


def check_ranges(ranges: Ranges, inputs: Sequence[str]) -> None:
    """Raise UsageError for ends that are no range, and for what is no input of the model."""
    for name, ends in ranges.items():
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise UsageError(f"--range cannot have {ends!r} for {name!r}", _WRITE)
        if name not in inputs:
            raise UsageError(
                f"--range names {name!r}, which is no input of the model",
                f"its inputs are {', '.join(inputs) or 'none'}",
            )
