"""Values too small for the low type, or for their scale of 8 bits."""

from collections.abc import Iterator

from precision_bisect.explaining.diagnosis.causes.observed import Observed
from precision_bisect.explaining.diagnosis.findings import Sign
from precision_bisect.graphs.lowtypes import QuantizedType

FLUSHED_SHARE = 0.01
"""Share of values that become 0 or subnormal, from which underflow may be the cause. Half and
double change nothing in benchmarks/constants.py."""
FAINT_SHARE = 0.5
"""Share of the rounding noise that such values make, from which underflow is the cause: the larger
part. Many activations end in a tail of tiny values, whose loss is nothing beside the rest."""
FLUSHED_OPERAND_SHARE = 0.1
"""Share of an operand that becomes 0 or subnormal, from which underflow is called the cause. Of
normally distributed values INT8 makes 2% zero if the largest is 5 times the root mean square. Half
and double change nothing in benchmarks/constants.py."""
_PART = "{share:.0%} of the {what} is "
_BELOW = _PART + "below {limit:.2g}, where {low} "


def find(observed: Observed) -> Iterator[Sign]:
    """Yield what is too small, where that makes most of the noise, or small values count."""
    low = observed.low
    lost = "loses digits or becomes 0" if low.digits else "becomes 0"
    if isinstance(low, QuantizedType):
        what, _, worst = observed.worst
        words, limit = f"{_BELOW}with its scale {lost}", worst.scale * low.smallest_normal
        # Each channel of a weight has a scale of its own: no one limit holds for the share.
        if what == "weight":
            words = f"{_PART}too small for the scale of its channel, and {lost} in {{low}}"
        if worst.small_share >= FLUSHED_OPERAND_SHARE:
            yield Sign(words, share=worst.small_share, what=what, limit=limit, low=low.name)
        return
    for what, tensors in observed.groups.items():
        shares = (
            magnitudes.small_share
            for _, name, magnitudes in tensors
            if name in observed.magnified or magnitudes.faint_share >= FAINT_SHARE
        )
        if (share := max(shares, default=0.0)) >= FLUSHED_SHARE:
            limit, name = low.smallest_normal, low.name.upper()
            yield Sign(_BELOW + lost, share=share, what=what, limit=limit, low=name)
            return
