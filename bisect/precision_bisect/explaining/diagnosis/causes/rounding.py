"""Digits that the low type has not: what is left where nothing graver is seen."""

from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType


def find(observed: Observed) -> Iterator[Sign]:
    """Yield how fine the type is, and how an error grows in the layer."""
    low, growth = observed.low, observed.growth
    if isinstance(low, QuantizedType):
        what, _, worst = observed.worst
        most = "up to " if what == "weight" else ""
        steps = f"{{low}} has steps of {most}{{scale:.2g}} for the {{what}}"
        words = "{low} rounds to {digits} significant bits" if low.digits else steps
        yield Sign(words, low=low.name, digits=low.digits, scale=worst.scale, what=what)
        return
    inside = ", after each step inside, too" if observed.steps else ""
    words = f"{{low}} rounds to {{digits}} significant bits{inside}"
    yield Sign(words, low=low.name.upper(), digits=low.digits, steps=observed.steps)
    # Less than double is no growth worth a word.
    if growth is not None and growth >= 2.0:
        words = "an error of {before:.2g} in what it reads becomes {after:.2g}"
        yield Sign(words, before=observed.error_in, after=observed.error_out)
