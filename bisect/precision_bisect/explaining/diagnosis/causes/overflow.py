"""Values beyond the low type's largest, in 16 bits: scales take care of the range of 8."""

from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed, largest_of
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType

_EXCEEDS = ", which exceeds {low}'s maximum {limit:.5g}"


def find(observed: Observed) -> Iterator[Sign]:
    """Yield what leaves the range; nothing where all stays within it."""
    low, summed, total = observed.low, observed.summed, observed.largest_sum
    if isinstance(low, QuantizedType):
        return
    limit = {"limit": low.largest, "low": low.name.upper()}
    reached = {what: largest_of(tensors) for what, tensors in observed.groups.items()}
    what = max(reached, key=lambda what: reached[what], default="")
    # What reaches furthest is told, as it is compared with what other layers reach.
    if low.largest < (largest := reached.get(what, 0.0)) >= total:
        words = f"{{what}} reaches {{largest:.3g}}{_EXCEEDS}"
        yield Sign(words, what=what, largest=largest, **limit)
    # ONNX Runtime's CUDA provider stores a mean's sum in FP16 before it divides.
    elif total > low.largest:
        words = "the engine stores the sum of {summed} values before it divides; it reaches "
        yield Sign(f"{words}{{largest:.3g}}{_EXCEEDS}", summed=summed, largest=total, **limit)
    elif summed > low.largest:
        words = "the engine divides by the number of values in {low}: {summed}"
        yield Sign(words + _EXCEEDS, summed=summed, **limit)
