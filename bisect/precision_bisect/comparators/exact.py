"""Outputs that are classes: how many elements differ from the reference, on the limit's scale.

A difference between two class numbers says nothing of how wrong the choice is: 4000 for 4010 is
as wrong as 0, though it is off by a quarter of a percent.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

HALF = 0.5
"""The limit of an output that must be exact, in elements: none passes, one is twice too many."""


def multiple(got: NDArray[Any], want: NDArray[Any], share: float) -> float:
    """Return how many elements differ, as a multiple of how many may; inf for another shape."""
    if got.shape != want.shape:
        return float("inf")
    differing = int(np.count_nonzero(got != want))
    return differing / want.size / share if share else differing / HALF


def changed(got: NDArray[Any], want: NDArray[Any]) -> str:
    """Say how many elements differ."""
    if got.shape != want.shape:
        return f"the shape is {list(got.shape)} instead of {list(want.shape)}"
    return f"{int(np.count_nonzero(got != want))} of {want.size} elements differ"
