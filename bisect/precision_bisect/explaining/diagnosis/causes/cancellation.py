"""Near equals that are subtracted, in 16 bits."""

from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType

LOST_BITS = 3.0
"""Bits lost by subtraction, from which cancellation is called the cause: 3 of FP16's 11. Half and
double change nothing in benchmarks/constants.py."""


def find(observed: Observed) -> Iterator[Sign]:
    """Yield how many bits a sum or difference loses, where these are many."""
    low, bits = observed.low, observed.lost_bits
    if not isinstance(low, QuantizedType) and bits >= LOST_BITS:
        words = "the result is 2^{bits:.1f} times smaller than what is added, "
        words += "{low} has {digits} significant bits"
        yield Sign(words, bits=bits, low=low.name.upper(), digits=low.digits)
