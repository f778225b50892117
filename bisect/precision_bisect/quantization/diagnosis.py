"""Why a layer cannot be quantized, read off the values that it would quantize and their scales."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_bisect.lowtypes import QuantizedType
from precision_bisect.model.constants import read_constants
from precision_bisect.model.load import Model
from precision_bisect.protocols import Sample
from precision_bisect.quantization.calibration import observed
from precision_bisect.quantization.layers import OPERANDS
from precision_bisect.quantization.rounding import fake_quantized
from precision_bisect.quantization.scales import Scales
from precision_bisect.result import Diagnosis

OUTLIER_RATIO = 10.0
"""Largest magnitude over root mean square from which outliers are called the cause.

Of a million normally distributed values the largest is 5 times the root mean square.
"""


@dataclass(slots=True)
class Loss:
    """What quantization does to one tensor, over all values that were added."""

    largest: float = 0.0
    squares: float = 0.0
    noise: float = 0.0
    count: int = 0

    def add(self, values: NDArray[np.float32], rounded: NDArray[np.float32]) -> None:
        """Account for values and what quantization makes of them, arrays of one shape."""
        self.largest = max(self.largest, float(np.abs(values).max(initial=0.0)))
        self.squares += float(np.square(values, dtype=np.float64).sum())
        self.noise += float(np.square(values - rounded, dtype=np.float64).sum())
        self.count += values.size

    @property
    def peak(self) -> float:
        """The largest magnitude as a multiple of the root mean square; 0 for nothing but 0."""
        return self.largest / math.sqrt(self.squares / self.count) if self.squares else 0.0

    @property
    def decibels(self) -> float:
        """The signal-to-noise ratio that is left."""
        if not self.noise or not self.squares:
            return math.inf
        return 10.0 * math.log10(self.squares / self.noise)


def diagnose_quantized(
    model: Model,
    kept: Sequence[str],
    samples: Sequence[Sample],
    scales: Scales,
    kind: QuantizedType,
) -> list[Diagnosis]:
    """Return one diagnosis per kept layer, in network order: the operand that suffers most.

    Raises RuntimeError where the model cannot be run.
    """
    wanted = frozenset(kept)
    nodes = [node for node in model.proto.graph.node if node.name in wanted]
    losses = _losses(model, wanted, samples, scales, kind)
    found = []
    for node in nodes:
        operands = {i: losses[node.input[i]] for i in OPERANDS if node.input[i] in losses}
        worst = min(operands, key=lambda i: operands[i].decibels)
        loss = operands[worst]
        weight = node.input[worst] in scales.weights
        evidence = (
            f"{'weight' if weight else 'input'} reaches {loss.largest:.3g}, {loss.peak:.0f} times "
            f"its root mean square; {kind.name} leaves {loss.decibels:.0f} dB of it"
        )
        cause = "outliers" if loss.peak >= OUTLIER_RATIO else "rounding"
        found.append(Diagnosis(layer=node.name, cause=cause, evidence=evidence))
    return found


def _losses(
    model: Model,
    layers: frozenset[str],
    samples: Sequence[Sample],
    scales: Scales,
    kind: QuantizedType,
) -> Mapping[str, Loss]:
    """Return the losses of every operand of the layers, by tensor name."""
    read = {
        node.input[i] for node in model.proto.graph.node if node.name in layers for i in OPERANDS
    }
    losses = {name: Loss() for name in read}
    constants = read_constants(model, layers).values
    for name in sorted(read & constants.keys()):
        weight = constants[name].astype(np.float32, copy=False)
        left = fake_quantized(weight, scales.weights[name].along(weight.ndim), kind)
        losses[name].add(weight, left)
    for name, values in observed(model, sorted(read - constants.keys()), samples):
        scale = np.float32(scales.activations[name])
        losses[name].add(values, fake_quantized(values, scale, kind))
    return losses
