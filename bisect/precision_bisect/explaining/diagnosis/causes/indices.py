"""Whole numbers, as indices and counts are, that lose their last digits."""

from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed, largest_of
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType


def find(observed: Observed) -> Iterator[Sign]:
    """Yield the first tensors that hold whole numbers alone, some of which the type has not."""
    low = observed.low
    # An 8-bit scale rounds indices as anything else.
    if isinstance(low, QuantizedType):
        return
    for what, tensors in observed.groups.items():
        lost = [
            tensor
            for tensor in tensors
            if tensor.name in observed.counts
            and tensor.magnitudes.whole
            and tensor.magnitudes.noise > 0
            and tensor.magnitudes.largest > 2**low.digits
        ]
        if lost:
            words = "{what} holds whole numbers up to {largest:.0f}, as indices are, and "
            yield Sign(
                words + "{low} has not each of them beyond {most}",
                what=what,
                largest=largest_of(lost),
                low=low.name.upper(),
                most=2**low.digits,
            )
            return
