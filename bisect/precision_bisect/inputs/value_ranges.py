"""Between which values an input may lie: `--range t=0:999`."""

import math
from collections.abc import Mapping, Sequence

from precision_bisect.errors import UsageError
from precision_bisect.settings.reading import RANGE_HINT

Ranges = Mapping[str, tuple[float, float]]


def check_ranges(ranges: Ranges, inputs: Sequence[str]) -> None:
    """Raise UsageError for ends that are no range, and for what is no input of the model."""
    for name, ends in ranges.items():
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise UsageError(f"--range cannot have {ends!r} for {name!r}", RANGE_HINT)
        if name not in inputs:
            raise UsageError(
                f"--range names {name!r}, which is no input of the model",
                f"its inputs are {', '.join(inputs) or 'none'}",
            )
