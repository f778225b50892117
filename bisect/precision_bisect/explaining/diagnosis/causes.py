"""The cause of one layer's trouble in a low type, and what shows it.

The order of the questions matters: in 16 bits a layer that overflows also rounds, so the gravest
cause comes first, and "rounding" is what is left. In INT8 and FP8 operands are quantized, outputs
are not: what counts is what operands lose to their scales. The cause is told of the one that loses
most, with the lowest signal-to-quantization-noise ratio (Widrow, Kollar, Quantization Noise, 2008,
ch. 1).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Histogram
from precision_bisect.explaining.diagnosis.holding import LOWEST_EXPONENT, Magnitudes
from precision_bisect.graphs.lowtypes import LowType, QuantizedType
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
CUT_SHARE = 0.5
"""Share of the noise that comes from saturation, from which clipping is called the cause: more
than all else. Half and double change nothing in benchmarks/constants.py."""
OUTLIER_RATIO = 10.0
"""Largest magnitude over root mean square, from which outliers are called the cause. Of a million
normally distributed values the largest is 5 times the root mean square. Half: no more than chance;
double: 6 of 20 models are told otherwise, in benchmarks/constants.py."""
FLUSHED_OPERAND_SHARE = 0.1
"""Share of an operand that becomes 0 or subnormal, from which underflow is called the cause. Of
normally distributed values INT8 makes 2% zero if the largest is 5 times the root mean square. Half
and double change nothing in benchmarks/constants.py."""
CHANNEL_RATIO = 4.0
"""Largest channel over the median one, from which the evidence names it, and bringing the channels
to one size is tried. Half and double change nothing in benchmarks/constants.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen of one layer: its tensors' magnitudes, by name, and errors run alone low.

    `error_out` is the root mean square error of what the layer stores when it alone runs low,
    relative to the values. It is None if it was not measured, infinity for NaN or Inf. `summed` is
    the number of values in each sum that the engine stores before it divides, 0 for none. `steps`
    tells that it stores the result of each step inside the operator, `between` has these by the
    operator that makes them, as far as they are known. `counts` are the tensors that hold indices
    and counts, `magnified` those whose small values count as much. It is `harmless` if outputs are
    right although values saturate.
    """

    op_type: str
    inputs: Named
    outputs: Named
    weights: Named
    error_out: float | None = None
    summed: int = 0
    steps: bool = False
    between: Mapping[str, Named] = field(default_factory=dict)
    counts: frozenset[str] = frozenset()
    magnified: frozenset[str] = frozenset()
    harmless: bool = False

    @property
    def groups(self) -> tuple[tuple[str, Named], ...]:
        """All tensors; those come first whose trouble explains most."""
        return (("output", self.outputs), ("input", self.inputs), ("weight", self.weights))

    @property
    def all_groups(self) -> tuple[tuple[str, Named], ...]:
        """All tensors, those between steps as well."""
        steps = ((f"{op_type} inside", tensors) for op_type, tensors in self.between.items())
        return (*self.groups, *steps)

    @property
    def largest_sum(self) -> float:
        """The largest sum that the engine stores; 0 where it stores none."""
        return self.summed * max(
            (magnitudes.largest for _, magnitudes in self.outputs), default=0.0
        )

    @property
    def error_in(self) -> float:
        """The largest relative error that rounding alone gives to what the layer reads."""
        return max(
            (magnitudes.rounding for _, magnitudes in (*self.inputs, *self.weights)), default=0.0
        )


def cause_of(observed: Observed, low: LowType) -> tuple[str, str]:
    """Return the cause and its evidence in one sentence."""
    beyond = _overflow(observed, low)
    if beyond and not observed.harmless:
        return "overflow", beyond
    cause, evidence = _within_range(observed, low)
    return cause, f"{evidence}; {beyond}, and does no harm" if beyond else evidence


def _overflow(observed: Observed, low: LowType) -> str:
    """Say what leaves the range; "" where nothing does."""
    for what, tensors in observed.all_groups:
        largest = max((magnitudes.largest for _, magnitudes in tensors), default=0.0)
        if largest > low.largest:
            return f"{what} reaches {largest:.3g}, {_exceeds(low)}"
    # ONNX Runtime's CUDA provider stores a mean's sum in FP16 before it divides.
    if observed.largest_sum > low.largest:
        return (
            f"the engine stores the sum of {observed.summed} values before it divides; it reaches "
            f"{observed.largest_sum:.3g}, {_exceeds(low)}"
        )
    if observed.summed > low.largest:
        return (
            f"the engine divides by the number of values in {low.name.upper()}: "
            f"{observed.summed}, {_exceeds(low)}"
        )
    return ""


def _within_range(observed: Observed, low: LowType) -> tuple[str, str]:
    """Return the cause and its evidence where no value leaves the range."""
    for what, tensors in observed.all_groups:
        shares = (
            magnitudes.small_share
            for name, magnitudes in tensors
            if name in observed.magnified or magnitudes.faint_share >= FAINT_SHARE
        )
        share = max(shares, default=0.0)
        if share >= FLUSHED_SHARE:
            return "underflow", (
                f"{share:.0%} of the {what} is below {low.smallest_normal:.2g}, where "
                f"{low.name.upper()} loses digits or becomes 0"
            )
    for what, tensors in observed.groups:
        lost = [
            magnitudes
            for name, magnitudes in tensors
            if name in observed.counts and _loses_ones(magnitudes, low)
        ]
        largest = max((magnitudes.largest for magnitudes in lost), default=0.0)
        if largest:
            return INDICES, (
                f"{what} holds whole numbers up to {largest:.0f}, as indices are, and "
                f"{low.name.upper()} has not each of them beyond {2**low.digits}"
            )
    bits = lost_bits(observed)
    if bits >= LOST_BITS:
        return "cancellation", (
            f"the result is 2^{bits:.1f} times smaller than what is added, "
            f"{low.name.upper()} has {low.digits} significant bits"
        )
    steps = ", after each step inside, too" if observed.steps else ""
    rounds = f"{low.name.upper()} rounds to {low.digits} significant bits"
    return ROUNDING, f"{rounds}{steps}{_growth(observed)}"


def _loses_ones(magnitudes: Magnitudes, low: LowType) -> bool:
    """Tell whether a tensor holds whole numbers alone, some of which the low type has not."""
    return magnitudes.whole and magnitudes.noise > 0 and magnitudes.largest > 2**low.digits


def _exceeds(low: LowType) -> str:
    return f"which exceeds {low.name.upper()}'s maximum {low.largest:.5g}"


def lost_bits(observed: Observed) -> float:
    """Return log2 of how much larger the operands are than the result, by root mean square."""
    before = max(
        (magnitudes.mean_square for _, magnitudes in (*observed.inputs, *observed.weights)),
        default=0.0,
    )
    after = max((magnitudes.mean_square for _, magnitudes in observed.outputs), default=0.0)
    if observed.op_type not in _SUBTRACTING or not before or not after:
        return 0.0
    # Halved, as the ratio is one of squares.
    return float(np.log2(before / after)) / 2


def figures_of(observed: Observed, low: LowType) -> dict[str, Any]:
    """Return the figures of a layer: numbers, and where the largest magnitude lies."""
    tensors = [
        (what, name, magnitudes) for what, group in observed.groups for name, magnitudes in group
    ]
    figures: dict[str, Any] = {
        "limit": low.largest,
        "smallest_normal": low.smallest_normal,
        "lost_bits": lost_bits(observed),
        "error_in": observed.error_in,
        "error_out": observed.error_out,
        "largest_sum": observed.largest_sum if observed.summed else None,
        "growth": _ratio(observed),
    }
    if not tensors:
        return figures
    return figures | {
        **_largest_at(*max(tensors, key=lambda tensor: tensor[2].largest)),
        "small_share": max(magnitudes.small_share for *_, magnitudes in tensors),
        "flushed_share": max(magnitudes.flushed_share for *_, magnitudes in tensors),
    }


def _largest_at(what: str, name: str, tensor: Magnitudes) -> dict[str, Any]:
    """Return the largest magnitude of a tensor, and where it lies; a weight is in no sample."""
    place = tensor.place
    return {
        "largest": tensor.largest,
        "largest_in": what,
        "tensor": name,
        "sample": place.sample if place and what != "weight" else None,
        "index": list(place.index) if place else None,
    }


def histogram_of(observed: Observed, *, scaled: bool = False) -> Histogram:
    """Return how the magnitudes are spread, over all tensors of one kind together."""
    groups: Mapping[str, Named] = {
        "inputs": observed.inputs,
        "outputs": observed.outputs,
        "weights": observed.weights,
    }
    sums: dict[str, NDArray[np.int64]] = {
        key: np.array([magnitudes.exponents for _, magnitudes in group], np.int64).sum(axis=0)
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


def _ratio(observed: Observed) -> float | None:
    if observed.error_out is None or not observed.error_in:
        return None
    return observed.error_out / observed.error_in


def _growth(observed: Observed) -> str:
    ratio = _ratio(observed)
    # Less than double is no growth worth a word.
    if ratio is None or ratio < 2.0:
        return ""
    return (
        f"; an error of {observed.error_in:.2g} in what it reads becomes {observed.error_out:.2g}"
    )


def quantized_cause_of(observed: Observed, kind: QuantizedType) -> tuple[str, str]:
    """Return the cause and its evidence in one sentence."""
    what, _, worst = _worst(observed)
    rest = f"; {kind.name} leaves {_decibels(worst):.0f} dB of it"
    # Clipping first: outliers that a scale cuts off no longer widen its steps.
    if worst.cut_share >= CUT_SHARE:
        return "clipping", (
            f"{what} reaches {worst.largest:.3g}, {kind.name.upper()}'s maximum with "
            f"its scale is {_limit(worst, kind):.3g}: {worst.beyond_share:.2%} is clipped{rest}"
        )
    if worst.peak >= OUTLIER_RATIO:
        flushed = worst.flushed_share if worst.flushed_share >= FLUSHED_OPERAND_SHARE else 0.0
        lost = f"; {flushed:.0%} becomes 0" if flushed else ""
        return "outliers", (
            f"{what} reaches {worst.largest:.3g}, {worst.peak:.0f} times its root mean square"
            f"{_channel_words(worst)}{lost}{rest}"
        )
    if worst.small_share >= FLUSHED_OPERAND_SHARE:
        below = worst.scale * kind.smallest_normal
        lost = "becomes 0" if kind.digits == 0 else "loses digits or becomes 0"
        # Each channel of a weight has a scale of its own: no one limit holds for the share.
        small = f"below {below:.2g}, where {kind.name} with its scale {lost}"
        if what == "weight":
            small = f"too small for the scale of its channel, and {lost} in {kind.name}"
        return "underflow", f"{worst.small_share:.0%} of the {what} is {small}{rest}"
    steps = f"rounds to {kind.digits} significant bits" if kind.digits else "has steps of"
    most = "up to " if what == "weight" else ""
    step = "" if kind.digits else f" {most}{worst.scale:.2g} for the {what}"
    return ROUNDING, f"{kind.name} {steps}{step}{rest}"


def quantized_figures_of(observed: Observed, kind: QuantizedType) -> dict[str, Any]:
    """Return the figures of a layer: those of the operand that loses most, and error growth."""
    what, name, worst = _worst(observed)
    channel, ratio = _channel(worst)
    return {
        "limit": _limit(worst, kind),
        "smallest_normal": worst.scale * kind.smallest_normal,
        "scale": worst.scale,
        **_largest_at(what, name, worst),
        "peak": worst.peak,
        "channel": channel,
        "channel_ratio": ratio,
        "clipped_share": worst.beyond_share,
        "small_share": worst.small_share,
        "flushed_share": worst.flushed_share,
        "decibels": _decibels(worst),
        "error_in": observed.error_in,
        "error_out": observed.error_out,
        "growth": _ratio(observed),
    }


def _worst(observed: Observed) -> tuple[str, str, Magnitudes]:
    """Return the operand that loses most: what it is, its name, and its figures."""
    groups = (("input", observed.inputs), ("weight", observed.weights))
    operands = [(what, name, magnitudes) for what, group in groups for name, magnitudes in group]
    if not operands:
        return "input", "", Magnitudes()
    return max(operands, key=lambda operand: operand[2].rounding)


def _limit(magnitudes: Magnitudes, kind: QuantizedType) -> float:
    return magnitudes.scale * kind.largest


def _decibels(magnitudes: Magnitudes) -> float:
    """Return the signal-to-quantization-noise ratio in dB; infinity where nothing is lost."""
    return -20.0 * math.log10(magnitudes.rounding) if magnitudes.rounding else math.inf


def _channel(magnitudes: Magnitudes) -> tuple[int | None, float | None]:
    """Return the channel of the largest magnitude, and its ratio to the median channel."""
    if magnitudes.channels is None or magnitudes.channels.size < 2:
        return None, None
    median = float(np.median(magnitudes.channels))
    channel = int(magnitudes.channels.argmax())
    return channel, float(magnitudes.channels[channel]) / median if median else math.inf


def _channel_words(magnitudes: Magnitudes) -> str:
    channel, ratio = _channel(magnitudes)
    if ratio is None or ratio < CHANNEL_RATIO:
        return ""
    times = f"{ratio:.0f} times" if math.isfinite(ratio) else "infinitely far"
    return f", in channel {channel} ({times} above the median channel)"
