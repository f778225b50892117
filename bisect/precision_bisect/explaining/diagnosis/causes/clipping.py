"""Values that a scale of 8 bits cuts off."""

from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType

CUT_SHARE = 0.5
"""Share of the noise that comes from saturation, from which clipping is called the cause: more
than all else. Half and double change nothing in benchmarks/constants.py."""


def find(observed: Observed) -> Iterator[Sign]:
    """Yield what is cut off, where most of the noise comes from that."""
    what, _, worst = observed.worst
    if isinstance(observed.low, QuantizedType) and worst.cut_share >= CUT_SHARE:
        yield Sign(
            "{what} reaches {largest:.3g}, {low}'s maximum with its scale is {limit:.3g}: "
            "{share:.2%} is clipped",
            what=what,
            largest=worst.largest,
            low=observed.low.name.upper(),
            limit=worst.scale * observed.low.largest,
            share=worst.beyond_share,
        )
