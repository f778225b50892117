"""The cause of one layer's trouble in a 16-bit type, and what shows it.

The order of the questions matters: a layer that overflows also rounds, so the gravest cause comes
first, and "rounding" is what is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Histogram
from precision_bisect.explaining.diagnosis.magnitudes import LOWEST_EXPONENT, Magnitudes
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.runs.results.result import ROUNDING

FLUSHED_SHARE = 0.01
"""Share of values that become 0 or subnormal, from which underflow may be the cause. Half and
double change nothing in benchmarks/constants.py."""
FAINT_SHARE = 0.5
"""Share of the rounding noise that such values make, from which underflow is the cause: the larger
part. Many activations end in a tail of tiny values, whose loss is nothing beside the rest."""
INDICES = "indices"
"""The cause where whole numbers, as indices and counts are, lose their last digits."""
LOST_BITS = 3.0
"""Bits lost by subtraction, from which cancellation is called the cause: 3 of FP16's 11. Half and
double change nothing in benchmarks/constants.py."""
_SUBTRACTING = frozenset(("Add", "Sub", "Sum", "ReduceSum", "ReduceMean", "Mean"))

Named = Sequence[tuple[str, Magnitudes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen of one layer: its tensors' magnitudes, by name, and errors run alone low.

    `error_out` is the root mean square error of what the layer stores when it alone runs low,
    relative to the values. It is None if it was not measured, infinity for NaN or Inf. `summed` is
    the number of values in each sum that the engine stores before it divides, 0 for none. `steps`
    tells that it stores the result of each step inside the operator. `counts` are the tensors that
    hold indices and counts, `magnified` those whose small values count as much. It is `harmless`
    if outputs are right although values saturate.
    """

    op_type: str
    inputs: Named
    outputs: Named
    weights: Named
    error_out: float | None = None
    summed: int = 0
    steps: bool = False
    counts: frozenset[str] = frozenset()
    magnified: frozenset[str] = frozenset()
    harmless: bool = False

    @property
    def groups(self) -> tuple[tuple[str, Named], ...]:
        """All tensors; those come first whose trouble explains most."""
        return (("output", self.outputs), ("input", self.inputs), ("weight", self.weights))

    @property
    def largest_sum(self) -> float:
        """The largest sum that the engine stores; 0 where it stores none."""
        return self.summed * max((each.largest for _, each in self.outputs), default=0.0)

    @property
    def error_in(self) -> float:
        """The largest relative error that rounding alone gives to what the layer reads."""
        return max((each.rounding for _, each in (*self.inputs, *self.weights)), default=0.0)


def cause_of(seen: Observed, low: LowType) -> tuple[str, str]:
    """Return the cause and its evidence in one sentence."""
    beyond = _overflow(seen, low)
    if beyond and not seen.harmless:
        return "overflow", beyond
    cause, evidence = _within_range(seen, low)
    return cause, f"{evidence}; {beyond}, and does no harm" if beyond else evidence


def _overflow(seen: Observed, low: LowType) -> str:
    """Say what leaves the range; "" where nothing does."""
    for what, tensors in seen.groups:
        largest = max((each.largest for _, each in tensors), default=0.0)
        if largest > low.largest:
            return f"{what} reaches {largest:.3g}, {_exceeds(low)}"
    # ONNX Runtime's CUDA provider stores a mean's sum in FP16 before it divides.
    if seen.largest_sum > low.largest:
        return (
            f"the engine stores the sum of {seen.summed} values before it divides; it reaches "
            f"{seen.largest_sum:.3g}, {_exceeds(low)}"
        )
    if seen.summed > low.largest:
        return (
            f"the engine divides by the number of values in {low.name.upper()}: {seen.summed}, "
            f"{_exceeds(low)}"
        )
    return ""


def _within_range(seen: Observed, low: LowType) -> tuple[str, str]:
    """Return the cause and its evidence where no value leaves the range."""
    for what, tensors in seen.groups:
        shares = (
            each.small_share
            for name, each in tensors
            if name in seen.magnified or each.faint_share >= FAINT_SHARE
        )
        share = max(shares, default=0.0)
        if share >= FLUSHED_SHARE:
            return "underflow", (
                f"{share:.0%} of the {what} is below {low.smallest_normal:.2g}, where "
                f"{low.name.upper()} loses digits or becomes 0"
            )
    for what, tensors in seen.groups:
        lost = [each for name, each in tensors if name in seen.counts and _loses_ones(each, low)]
        largest = max((each.largest for each in lost), default=0.0)
        if largest:
            return INDICES, (
                f"{what} holds whole numbers up to {largest:.0f}, as indices are, and "
                f"{low.name.upper()} has not each of them beyond {2**low.digits}"
            )
    bits = lost_bits(seen)
    if bits >= LOST_BITS:
        return "cancellation", (
            f"the result is 2^{bits:.1f} times smaller than what is added, "
            f"{low.name.upper()} has {low.digits} significant bits"
        )
    steps = ", after each step inside, too" if seen.steps else ""
    rounds = f"{low.name.upper()} rounds to {low.digits} significant bits"
    return ROUNDING, f"{rounds}{steps}{_growth(seen)}"


def _loses_ones(each: Magnitudes, low: LowType) -> bool:
    """Tell whether a tensor holds whole numbers alone, some of which the low type has not."""
    return each.whole and each.noise > 0 and each.largest > 2**low.digits


def _exceeds(low: LowType) -> str:
    return f"which exceeds {low.name.upper()}'s maximum {low.largest:.5g}"


def lost_bits(seen: Observed) -> float:
    """Return log2 of how much larger the operands are than the result, by root mean square."""
    before = max((each.mean_square for _, each in (*seen.inputs, *seen.weights)), default=0.0)
    after = max((each.mean_square for _, each in seen.outputs), default=0.0)
    if seen.op_type not in _SUBTRACTING or not before or not after:
        return 0.0
    # Halved, as the ratio is one of squares.
    return float(np.log2(before / after)) / 2


def figures_of(seen: Observed, low: LowType) -> dict[str, Any]:
    """Return the figures of a layer: numbers, and where the largest magnitude lies."""
    tensors = [(what, name, each) for what, group in seen.groups for name, each in group]
    found: dict[str, Any] = {
        "limit": low.largest,
        "smallest_normal": low.smallest_normal,
        "lost_bits": lost_bits(seen),
        "error_in": seen.error_in,
        "error_out": seen.error_out,
        "largest_sum": seen.largest_sum if seen.summed else None,
        "growth": _ratio(seen),
    }
    if not tensors:
        return found
    what, name, worst = max(tensors, key=lambda each: each[2].largest)
    place = worst.place if what != "weight" else None
    return found | {
        "largest": worst.largest,
        "largest_in": what,
        "tensor": name,
        "sample": place.sample if place else None,
        "index": list(worst.place.index) if worst.place else None,
        "small_share": max(each.small_share for *_, each in tensors),
        "flushed_share": max(each.flushed_share for *_, each in tensors),
    }


def histogram_of(seen: Observed, *, scaled: bool = False) -> Histogram:
    """Return how the magnitudes are spread, over all tensors of one kind together."""
    groups: Mapping[str, Named] = {
        "inputs": seen.inputs,
        "outputs": seen.outputs,
        "weights": seen.weights,
    }
    sums: dict[str, NDArray[np.int64]] = {
        key: np.array([each.exponents for _, each in group], np.int64).sum(axis=0)
        for key, group in groups.items()
        if group
    }
    totals = np.array(list(sums.values()), np.int64).reshape(len(sums), -1)
    # A report shows only the part of the axis that holds values.
    used = np.flatnonzero(totals.any(axis=0))
    if used.size == 0:
        return Histogram(lowest_exponent=0, counts={key: [] for key in groups}, scaled=scaled)
    first, last = int(used[0]), int(used[-1]) + 1
    return Histogram(
        lowest_exponent=LOWEST_EXPONENT + first,
        counts={
            key: [int(n) for n in sums[key][first:last]] if key in sums else [] for key in groups
        },
        scaled=scaled,
    )


def _ratio(seen: Observed) -> float | None:
    if seen.error_out is None or not seen.error_in:
        return None
    return seen.error_out / seen.error_in


def _growth(seen: Observed) -> str:
    ratio = _ratio(seen)
    # Less than double is no growth worth a word.
    if ratio is None or ratio < 2.0:
        return ""
    return f"; an error of {seen.error_in:.2g} in what it reads becomes {seen.error_out:.2g}"
