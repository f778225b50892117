"""Which tensors of a layer its low form changes, what holds them, and figures on their values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.constant_values import read_constants
from precision_bisect.graphs.graph import attribute, settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED, LowType, QuantizedType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.quantization.calibration import OPERANDS
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.precisions import Pair

LOWEST_EXPONENT = -150
"""Least floor(log2|x|) of a float32, rounded down: the smallest positive one is 2^-149."""
# Beyond a float32's largest exponent, 127, since values are counted in multiples of a scale.
_HIGHEST_EXPONENT = 150
_FP32 = np.finfo(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaled:
    """An 8-bit type with the scale of the tensor that it holds.

    `scale` is FP32 and broadcasts against the tensor. `channels` is the axis of an activation's
    channels, counted from the end if negative, for which the largest magnitude of each channel is
    wanted; None for none.
    """

    kind: QuantizedType
    scale: NDArray[np.float32]
    channels: int | None = None


Held: TypeAlias = LowType | Scaled
"""What holds a tensor when it is low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a value lies: the sample's number, and the index in its array."""

    sample: int
    index: tuple[int, ...]


@dataclass(slots=True)
class Magnitudes:
    """Figures of the finite values of a tensor; every share is one of the non-zero values.

    `beyond` counts values larger than the low type's largest, `small` those below its normal
    range, `flushed` those that become 0 in it. `noise` is the sum of the squared rounding errors,
    `cut` the part of it that comes from saturation, `faint` that from values below the normal
    range; `squares` is the sum of the squared values.

    `exponents` counts values by floor(log2(|x| / scale)), from `LOWEST_EXPONENT` on; zeros are
    only in `count`. `whole` is False once a value was no whole number. `scale` is the largest
    scale of what holds the tensor, 1 for a 16-bit type. `channels` has the largest magnitude of
    each channel, shape (channels,), where they are wanted.
    """

    largest: float = 0.0
    place: Position | None = None
    nonzero: int = 0
    beyond: int = 0
    small: int = 0
    flushed: int = 0
    squares: float = 0.0
    noise: float = 0.0
    cut: float = 0.0
    faint: float = 0.0
    count: int = 0
    whole: bool = True
    scale: float = 1.0
    channels: NDArray[np.float32] | None = None
    exponents: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(_HIGHEST_EXPONENT - LOWEST_EXPONENT, np.int64)
    )

    def add(self, array: NDArray[Any], low_type: Held, sample: int = 0) -> None:
        """Account for an array of any shape of one sample."""
        finite = np.isfinite(array)
        # One pass without a copy in the usual case that all is finite.
        values = array if finite.all() else np.where(finite, array, np.float32(0))
        magnitudes = np.abs(values)
        self.count += array.size
        self._find_largest(magnitudes, sample)
        self.whole = self.whole and bool((magnitudes == np.rint(magnitudes)).all())
        there = magnitudes > 0
        present = magnitudes[there]
        self.nonzero += present.size
        self.squares += float(np.square(present, dtype=np.float64).sum())
        if isinstance(low_type, Scaled):
            self.scale = float(low_type.scale.max())
            self._note_channels(magnitudes, low_type.channels)
            scale = low_type.scale
            if scale.ndim:
                scale = np.broadcast_to(scale, magnitudes.shape)[there]
            self._count(present, low_type.kind, scale)
        else:
            self._count(present, low_type, np.float32(1.0))

    def _count(
        self,
        present: NDArray[Any],
        kind: LowType | QuantizedType,
        scale: NDArray[np.float32] | np.float32,
    ) -> None:
        """Count what the low type does to magnitudes above 0, in multiples of `scale`."""
        with np.errstate(over="ignore"):
            scaled: NDArray[np.float32] = np.divide(present, scale, dtype=np.float32)
        # A quotient that became 0 or infinite has no exponent: it is counted in the first or last
        # bin.
        scaled = np.clip(scaled, _FP32.smallest_subnormal, _FP32.max)
        below = scaled < kind.smallest_normal
        self.small += int(below.sum())
        over = scaled > np.float32(kind.largest)
        self.beyond += int(over.sum())
        rounded = kind.round(scaled)
        self.flushed += int((rounded == 0).sum())
        # An overflow counts as saturation here: an infinite error would hide all others. `largest`
        # and `beyond` tell of it.
        error = np.minimum(rounded, np.float32(kind.largest)) * scale - present
        squared = np.square(error, dtype=np.float64)
        self.noise += float(squared.sum())
        self.cut += float(squared[over].sum())
        self.faint += float(squared[below].sum())
        # `frexp` gives a mantissa in [0.5, 1), so its exponent is one more than floor(log2).
        exponents = np.frexp(scaled)[1] - 1 - LOWEST_EXPONENT
        self.exponents += np.bincount(exponents, minlength=self.exponents.size)

    def _find_largest(self, magnitudes: NDArray[Any], sample: int) -> None:
        if magnitudes.size == 0 or not magnitudes.max() > self.largest:
            return
        flat = int(magnitudes.argmax())
        self.largest = float(magnitudes.reshape(-1)[flat])
        index = np.unravel_index(flat, magnitudes.shape)
        self.place = Position(sample=sample, index=tuple(int(i) for i in index))

    def _note_channels(self, magnitudes: NDArray[Any], axis: int | None) -> None:
        if axis is None or axis >= magnitudes.ndim or not magnitudes.size:
            return
        others = tuple(i for i in range(magnitudes.ndim) if i != axis % magnitudes.ndim)
        largest = magnitudes.max(axis=others)
        if self.channels is None or self.channels.shape != largest.shape:
            self.channels = largest
        else:
            self.channels = np.maximum(self.channels, largest)

    @property
    def small_share(self) -> float:
        """The share of values below the low type's normal range."""
        return self.small / self.nonzero if self.nonzero else 0.0

    @property
    def flushed_share(self) -> float:
        """The share of values that become 0 in the low type."""
        return self.flushed / self.nonzero if self.nonzero else 0.0

    @property
    def beyond_share(self) -> float:
        """The share of values beyond the low type's largest."""
        return self.beyond / self.nonzero if self.nonzero else 0.0

    @property
    def cut_share(self) -> float:
        """The share of the rounding noise that comes from saturation."""
        return self.cut / self.noise if self.noise else 0.0

    @property
    def faint_share(self) -> float:
        """The share of the rounding noise that comes from values below the normal range."""
        return self.faint / self.noise if self.noise else 0.0

    @property
    def mean_square(self) -> float:
        """The mean of the squares; 0 for no values."""
        return self.squares / self.count if self.count else 0.0

    @property
    def peak(self) -> float:
        """The largest magnitude over the root mean square; 0 if all values are 0."""
        return self.largest / math.sqrt(self.mean_square) if self.squares else 0.0

    @property
    def rounding(self) -> float:
        """The root mean square of the rounding errors, relative to that of the values."""
        return (self.noise / self.squares) ** 0.5 if self.squares else 0.0


_FLOAT = onnx.TensorProto.FLOAT
# The axis of the first operand along which products are summed. Channels along it share a scale.
_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}

# Operators whose result is large, or far from right, where this operand is small.
_MAGNIFYING = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}
_LIMITING = frozenset(("Abs", "Clip", "Max", "Neg"))


def read_low(node: onnx.NodeProto, pair: Pair) -> list[str]:
    """Return the tensors that a node reads low, each once; inputs such as axes do not count."""
    if pair.low in QUANTIZED:
        return list(dict.fromkeys(node.input[i] for i in OPERANDS if i < len(node.input)))
    settings = settings_of(node)
    return list(dict.fromkeys(name for i, name in enumerate(node.input) if i not in settings))


def held_in(
    model: Model, pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> dict[str, Held]:
    """Return the type that holds each FP32 tensor that the nodes read or store low.

    Constants are left out: they have figures of their own (see `constants_of`).
    """
    if pair.low in QUANTIZED:
        return dict(_activations(pair, scales, nodes))
    low = LOW_TYPES[pair.low]
    return {
        name: low
        for node in nodes
        for name in (*node.input, *node.output)
        if model.elem_types.get(name) == _FLOAT
    }


def _activations(
    pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> Iterator[tuple[str, Scaled]]:
    axes: dict[str, set[int | None]] = {}
    for node in nodes:
        for position in OPERANDS:
            if (name := node.input[position]) in scales.activations:
                axes.setdefault(name, set()).add(_channels(node, position))
    for name, along in axes.items():
        scale = np.array(scales.activations[name], np.float32)
        # A channel to one reader is none to another that sums along another axis.
        channels = along.pop() if len(along) == 1 else None
        yield name, Scaled(kind=QUANTIZED[pair.low], scale=scale, channels=channels)


def _channels(node: onnx.NodeProto, position: int) -> int | None:
    """Return the axis of an operand's channels; None where it has none that are known."""
    transposed = attribute(node, "transA")
    if position != 0 or (transposed is not None and transposed.i):
        return None
    return _CHANNELS[node.op_type]


def constants_of(
    model: Model, pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> Mapping[str, Magnitudes]:
    """Return the magnitudes of the FP32 constants that the nodes read low, settings apart."""
    magnitudes = {}
    readers = frozenset(node.name for node in nodes)
    for name, array in read_constants(model, readers).values.items():
        low_type: Held
        if pair.low not in QUANTIZED:
            low_type = LOW_TYPES[pair.low]
        elif name in scales.weights:
            scale = scales.weights[name].along(array.ndim)
            low_type = Scaled(kind=QUANTIZED[pair.low], scale=scale)
        # A constant without a scale is read as it is stored.
        else:
            continue
        magnitudes[name] = Magnitudes()
        magnitudes[name].add(array.astype(np.float32, copy=False), low_type)
    return magnitudes


def magnified(model: Model) -> frozenset[str]:
    """Return the tensors that are divided by, or whose logarithm or root is taken.

    The loss of their small values is large in the result. Powers count if their exponent is not
    known to be 1 or more, and tensors whose values are only moved or limited on the way.
    """
    view, tensors = View(model), set[str]()
    for node in reversed(view.nodes):
        if node.op_type in _MAGNIFYING and not _grows(view, node):
            tensors.add(node.input[_MAGNIFYING[node.op_type]])
        elif is_follower(node) or node.op_type in _LIMITING:
            tensors.update(node.input if not tensors.isdisjoint(node.output) else ())
    return frozenset(tensors)


def _grows(view: View, node: onnx.NodeProto) -> bool:
    """Tell whether a node is a power with exponents from 1 on."""
    exponents = view.array(node.input[1]) if node.op_type == "Pow" else None
    return exponents is not None and bool((exponents >= 1).all())
