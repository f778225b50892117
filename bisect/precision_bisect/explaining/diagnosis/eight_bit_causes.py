"""Why a layer cannot be INT8 or FP8: what its operands lose to their scales.

Operands are quantized, outputs are not. The cause is told of the operand that loses most: the one
with the lowest signal-to-quantization-noise ratio (Widrow, Kollar, Quantization Noise, 2008, ch.
1).
"""

import math
from typing import Any

import numpy as np

from precision_bisect.explaining.diagnosis.causes import Observed
from precision_bisect.explaining.diagnosis.magnitudes import Magnitudes
from precision_bisect.graphs.lowtypes import QuantizedType
from precision_bisect.runs.results.result import ROUNDING

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


def quantized_cause_of(seen: Observed, kind: QuantizedType) -> tuple[str, str]:
    """Return the cause and its evidence in one sentence."""
    what, _, worst = _worst(seen)
    left = f"; {kind.name} leaves {_decibels(worst):.0f} dB of it"
    # Clipping first: outliers that a scale cuts off no longer widen its steps.
    if worst.cut_share >= CUT_SHARE:
        return "clipping", (
            f"{what} reaches {worst.largest:.3g}, {kind.name.upper()}'s maximum with "
            f"its scale is {_limit(worst, kind):.3g}: {worst.beyond_share:.2%} is clipped{left}"
        )
    if worst.peak >= OUTLIER_RATIO:
        flushed = worst.flushed_share if worst.flushed_share >= FLUSHED_OPERAND_SHARE else 0.0
        lost = f"; {flushed:.0%} becomes 0" if flushed else ""
        return "outliers", (
            f"{what} reaches {worst.largest:.3g}, {worst.peak:.0f} times its root mean square"
            f"{_channel_words(worst)}{lost}{left}"
        )
    if worst.small_share >= FLUSHED_OPERAND_SHARE:
        below = worst.scale * kind.smallest_normal
        lost = "becomes 0" if kind.digits == 0 else "loses digits or becomes 0"
        # Each channel of a weight has a scale of its own: no one limit holds for the share.
        small = f"below {below:.2g}, where {kind.name} with its scale {lost}"
        if what == "weight":
            small = f"too small for the scale of its channel, and {lost} in {kind.name}"
        return "underflow", f"{worst.small_share:.0%} of the {what} is {small}{left}"
    steps = f"rounds to {kind.digits} significant bits" if kind.digits else "has steps of"
    most = "up to " if what == "weight" else ""
    step = "" if kind.digits else f" {most}{worst.scale:.2g} for the {what}"
    return ROUNDING, f"{kind.name} {steps}{step}{left}"


def quantized_figures_of(seen: Observed, kind: QuantizedType) -> dict[str, Any]:
    """Return the figures of a layer: those of the operand that loses most, and error growth."""
    what, name, worst = _worst(seen)
    place = worst.place if what != "weight" else None
    error_in = seen.error_in
    known = seen.error_out is not None and error_in
    channel, ratio = _channel(worst)
    return {
        "limit": _limit(worst, kind),
        "smallest_normal": worst.scale * kind.smallest_normal,
        "scale": worst.scale,
        "largest": worst.largest,
        "largest_in": what,
        "tensor": name,
        "sample": place.sample if place else None,
        "index": list(worst.place.index) if worst.place else None,
        "peak": worst.peak,
        "channel": channel,
        "channel_ratio": ratio,
        "clipped_share": worst.beyond_share,
        "small_share": worst.small_share,
        "flushed_share": worst.flushed_share,
        "decibels": _decibels(worst),
        "error_in": error_in,
        "error_out": seen.error_out,
        "growth": seen.error_out / error_in if known and seen.error_out is not None else None,
    }


def _worst(seen: Observed) -> tuple[str, str, Magnitudes]:
    """Return the operand that loses most: what it is, its name, and its figures."""
    groups = (("input", seen.inputs), ("weight", seen.weights))
    operands = [(what, name, each) for what, group in groups for name, each in group]
    if not operands:
        return "input", "", Magnitudes()
    return max(operands, key=lambda operand: operand[2].rounding)


def _limit(found: Magnitudes, kind: QuantizedType) -> float:
    return found.scale * kind.largest


def _decibels(found: Magnitudes) -> float:
    """Return the signal-to-quantization-noise ratio in dB; infinity where nothing is lost."""
    return -20.0 * math.log10(found.rounding) if found.rounding else math.inf


def _channel(found: Magnitudes) -> tuple[int | None, float | None]:
    """Return the channel of the largest magnitude, and its ratio to the median channel."""
    if found.channels is None or found.channels.size < 2:
        return None, None
    median = float(np.median(found.channels))
    channel = int(found.channels.argmax())
    return channel, float(found.channels[channel]) / median if median else math.inf


def _channel_words(found: Magnitudes) -> str:
    channel, ratio = _channel(found)
    if ratio is None or ratio < CHANNEL_RATIO:
        return ""
    times = f"{ratio:.0f} times" if math.isfinite(ratio) else "infinitely far"
    return f", in channel {channel} ({times} above the median channel)"
