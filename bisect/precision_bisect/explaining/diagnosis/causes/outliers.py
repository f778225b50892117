"""Values far larger than the others, which widen the steps of a scale of 8 bits.

They are looked for after clipping: what a scale cuts off no longer widens its steps.
"""

import math
from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed, channel_of
from precision_bisect.explaining.diagnosis.causes.underflow import FLUSHED_OPERAND_SHARE
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType

OUTLIER_RATIO = 10.0
"""Largest magnitude over root mean square, from which outliers are called the cause. Of a million
normally distributed values the largest is 5 times the root mean square. Half: no more than chance;
double: 6 of 20 models are told otherwise, in benchmarks/constants.py."""
CHANNEL_RATIO = 4.0
"""Largest channel over the median one, from which the evidence names it, and bringing the channels
to one size is tried. Half and double change nothing in benchmarks/constants.py."""


def find(observed: Observed) -> Iterator[Sign]:
    """Yield the largest value of the operand that loses most, and what becomes 0 beside it."""
    what, _, worst = observed.worst
    if not isinstance(observed.low, QuantizedType) or worst.peak < OUTLIER_RATIO:
        return
    channel, ratio = channel_of(worst)
    words = "{what} reaches {largest:.3g}, {peak:.0f} times its root mean square"
    if ratio is not None and ratio >= CHANNEL_RATIO:
        times = "{ratio:.0f} times" if math.isfinite(ratio) else "infinitely far"
        words += f", in channel {{channel}} ({times} above the median channel)"
    figures = {"largest": worst.largest, "peak": worst.peak, "channel": channel, "ratio": ratio}
    yield Sign(words, what=what, **figures)
    if worst.flushed_share >= FLUSHED_OPERAND_SHARE:
        yield Sign("{share:.0%} becomes 0", share=worst.flushed_share)
