"""What is seen of one layer, of which the causes and its figures are read off."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from precision_bisect.explaining.diagnosis.findings import Histogram
from precision_bisect.explaining.diagnosis.holding import LOWEST_EXPONENT, Magnitudes
from precision_bisect.graphs.lowtypes import LowType, QuantizedType

_SUBTRACTING = frozenset(("Add", "Sub", "Sum", "ReduceSum", "ReduceMean", "Mean"))
_KINDS = {"inputs": "input", "outputs": "output", "weights": "weight"}


class Operand(NamedTuple):
    """A tensor of a layer: what it is to it, its name, and its magnitudes."""

    what: str
    name: str
    magnitudes: Magnitudes


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen of one layer: its tensors' magnitudes, and errors run alone in `low`.

    Of the `tensors` those come first whose trouble explains most. `error_out` is the root mean
    square error of what the layer stores when it alone runs low, relative to the values. It is
    None if it was not measured, infinity for NaN or Inf. `summed` is the number of values in each
    sum that the engine stores before it divides, 0 for none. `steps` tells that it stores the
    result of each step inside the operator, `between` has these as far as they are known. `counts`
    are the tensors that hold indices and counts, `magnified` those whose small values count as
    much. It is `harmless` if outputs are right although values saturate.
    """

    op_type: str
    low: LowType | QuantizedType
    tensors: Sequence[Operand]
    error_out: float | None = None
    summed: int = 0
    steps: bool = False
    between: Sequence[Operand] = ()
    counts: frozenset[str] = frozenset()
    magnified: frozenset[str] = frozenset()
    harmless: bool = False

    @property
    def groups(self) -> Mapping[str, Sequence[Operand]]:
        """All tensors by what they are, those between steps as well."""
        groups: dict[str, list[Operand]] = {}
        for tensor in (*self.tensors, *self.between):
            groups.setdefault(tensor.what, []).append(tensor)
        return groups

    @property
    def largest_sum(self) -> float:
        """The largest sum that the engine stores; 0 where it stores none."""
        return self.summed * largest_of(self.groups.get("output", ()))

    @property
    def error_in(self) -> float:
        """The largest relative error that rounding alone gives to what the layer reads."""
        return self.worst.magnitudes.rounding

    @property
    def growth(self) -> float | None:
        """The relative error of what it stores over that of what it reads; None if not known."""
        if self.error_out is None or not self.error_in:
            return None
        return self.error_out / self.error_in

    @property
    def worst(self) -> Operand:
        """The operand that loses most, with the lowest signal-to-quantization-noise ratio."""
        operands = [tensor for tensor in self.tensors if tensor.what != "output"]
        nothing = Operand("input", "", Magnitudes())
        return max(operands, key=lambda operand: operand.magnitudes.rounding, default=nothing)

    @property
    def figures(self) -> dict[str, Any]:
        """Its figures: numbers, and where the largest magnitude lies."""
        errors = {"error_in": self.error_in, "error_out": self.error_out, "growth": self.growth}
        if isinstance(self.low, QuantizedType):
            return {**_of_operand(self.worst, self.low), **errors}
        figures: dict[str, Any] = {
            "limit": self.low.largest,
            "smallest_normal": self.low.smallest_normal,
            "lost_bits": self.lost_bits,
            "largest_sum": self.largest_sum if self.summed else None,
            **errors,
        }
        if not self.tensors:
            return figures
        return figures | {
            **_largest_at(max(self.tensors, key=lambda tensor: tensor.magnitudes.largest)),
            "small_share": max(tensor.magnitudes.small_share for tensor in self.tensors),
            "flushed_share": max(tensor.magnitudes.flushed_share for tensor in self.tensors),
        }

    @property
    def histogram(self) -> Histogram:
        """How the magnitudes are spread, over all tensors of one kind together."""
        sums = {
            kind: sum(
                (tensor.magnitudes.exponents for tensor in self.tensors if tensor.what == what),
                np.zeros_like(Magnitudes().exponents),
            )
            for kind, what in _KINDS.items()
        }
        # A report shows only the part of the axis that holds values.
        used = np.flatnonzero(np.any(list(sums.values()), axis=0))
        first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (-LOWEST_EXPONENT, 0)
        present = {tensor.what for tensor in self.tensors}
        return Histogram(
            lowest_exponent=LOWEST_EXPONENT + first,
            counts={
                kind: sums[kind][first:last].tolist() if what in present else []
                for kind, what in _KINDS.items()
            },
            scaled=isinstance(self.low, QuantizedType),
        )

    @property
    def lost_bits(self) -> float:
        """log2 of how much larger the operands are than the result, by root mean square."""
        squares = {True: 0.0, False: 0.0}
        for what, _, magnitudes in self.tensors:
            made = what == "output"
            squares[made] = max(squares[made], magnitudes.mean_square)
        after, before = squares[True], squares[False]
        if self.op_type not in _SUBTRACTING or not before or not after:
            return 0.0
        # Halved, as the ratio is one of squares.
        return float(np.log2(before / after)) / 2


def largest_of(tensors: Sequence[Operand]) -> float:
    """Return the largest magnitude of some tensors, 0 for none."""
    return max((tensor.magnitudes.largest for tensor in tensors), default=0.0)


def channel_of(magnitudes: Magnitudes) -> tuple[int | None, float | None]:
    """Return the channel of the largest magnitude, and its ratio to the median channel."""
    if magnitudes.channels is None or magnitudes.channels.size < 2:
        return None, None
    median = float(np.median(magnitudes.channels))
    channel = int(magnitudes.channels.argmax())
    return channel, float(magnitudes.channels[channel]) / median if median else math.inf


def decibels(magnitudes: Magnitudes) -> float:
    """Return the signal-to-quantization-noise ratio in dB; infinity where nothing is lost."""
    return -20.0 * math.log10(magnitudes.rounding) if magnitudes.rounding else math.inf


def _of_operand(operand: Operand, kind: QuantizedType) -> dict[str, Any]:
    """Return the figures of an operand in an 8-bit type."""
    magnitudes = operand.magnitudes
    channel, ratio = channel_of(magnitudes)
    return {
        "limit": magnitudes.scale * kind.largest,
        "smallest_normal": magnitudes.scale * kind.smallest_normal,
        "scale": magnitudes.scale,
        **_largest_at(operand),
        "peak": magnitudes.peak,
        "channel": channel,
        "channel_ratio": ratio,
        "clipped_share": magnitudes.beyond_share,
        "small_share": magnitudes.small_share,
        "flushed_share": magnitudes.flushed_share,
        "decibels": decibels(magnitudes),
    }


def _largest_at(operand: Operand) -> dict[str, Any]:
    """Return the largest magnitude of a tensor, and where it lies; a weight is in no sample."""
    place = operand.magnitudes.place
    return {
        "largest": operand.magnitudes.largest,
        "largest_in": operand.what,
        "tensor": operand.name,
        "sample": place.sample if place and operand.what != "weight" else None,
        "index": list(place.index) if place else None,
    }
