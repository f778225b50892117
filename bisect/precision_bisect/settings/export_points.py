"""The plans that exports can hold, by name."""

from argparse import ArgumentTypeError
from typing import Literal

DEPLOY: Literal["deploy"] = "deploy"
FEWEST: Literal["fewest"] = "fewest"
NEAR_MISS = "near-miss"
"""What exports hold of a run that was cut off before a plan held on copies, too."""
EXPORT_POINTS = (DEPLOY, FEWEST, "culprits", "margin")
"""Plans that can be asked for, beside a point of the curve by its number of kept layers."""


def export_point(text: str) -> str:
    """Return the plan that is asked for, a number without leading zeros."""
    if text in EXPORT_POINTS:
        return text
    if not (text.isascii() and text.isdecimal()):
        names = ", ".join(EXPORT_POINTS)
        raise ArgumentTypeError(f"{text!r} is none of {names}, and no number of layers")
    return str(int(text))
