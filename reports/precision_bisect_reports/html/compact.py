"""Values as JSON can hold them, and small: texts that repeat are numbered."""

import math
from collections.abc import Sequence
from typing import Any


def coded(texts: Sequence[str]) -> dict[str, Any]:
    """Return the different texts, and for each place the number of its text."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return {"texts": list(numbers), "at": [numbers[text] for text in texts]}


def figure(value: float | None) -> float | str | None:
    """Return a figure with six digits, "inf" for an infinite one, None for none."""
    if value is None or math.isnan(value):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else "inf"
