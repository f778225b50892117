"""What one layer does to the outputs when it runs low, and how its error travels there.

Each layer is run low alone on the emulator. Two comparisons: the outputs, amid the answer's plan,
say how much it hurts; the tensors between, amid all-high, say where the error goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Hurt
from precision_bisect.explaining.diagnosis.instrument import Arrays, Emulator, Instrument
from precision_bisect.graphs.node_views import View, computed
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample

MOST_FOLLOWED = 64
"""Layers whose error is followed through the model, at most, in network order. A limit on the
time after the search: all values are held, and compared, for each."""
# Operators that add: an operand's error counts by its size, not relative to the operand.
_ADDING = frozenset(("Add", "Sub", "Sum", "Mean", "Concat"))
_FLOAT = onnx.TensorProto.FLOAT


class Strayed(NamedTuple):
    """How far a tensor is off: the norms of its error, infinite for NaN or Inf, and its values."""

    error: float
    size: float

    @property
    def relative(self) -> float:
        """The error relative to the values; 0 if all values and errors are 0."""
        if np.isinf(self.error):
            return self.error
        return self.error / self.size if self.size else 0.0


@dataclass(slots=True, kw_only=True)
class LoweredLayer:
    """A layer to run low, on the sample in which its values are largest, and what was seen of it.

    `rest` is the plan around it: the answer for a kept layer, else every layer high. `follow` asks
    for its error on the way to the output. `strayed` has its `tensors` amid all-high, `ends` the
    model's outputs amid the plan, `hurts` the one that it hurts most. `stopped` is what ONNX
    Runtime says where the model does not run then, else "".
    """

    index: int
    outputs: Sequence[str]
    rest: Plan
    sample: int
    follow: bool = True
    tensors: Sequence[str] = ()
    strayed: dict[str, Strayed] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    hurts: Hurt | None = None
    stopped: str = ""

    def largest(self, tensors: Iterable[str]) -> float | None:
        """Return the largest relative error of some tensors; None if none was looked at."""
        errors = [self.strayed[name].relative for name in tensors if name in self.strayed]
        return max(errors, default=None)


def see_harms(
    instrument: Instrument, cases: Mapping[str, LoweredLayer], samples: Sequence[Sample]
) -> None:
    """Run each layer low, by name, and note what that does.

    For each layer it takes one inference for the outputs, and one for each group of tensors that
    are looked at together. For each sample it takes as many to compare with. Raises RuntimeError
    where a run in FP32 fails.
    """
    if not cases:
        return
    view, inside = instrument.view, computed(instrument.model)
    for layer, case in cases.items():
        # Nothing else can differ while this layer alone runs low.
        behind = view.behind(layer) if case.follow else frozenset()
        own = [name for name in inside if view.maker.get(name) in behind]
        case.tensors = list(dict.fromkeys((*case.outputs, *own)))
    # Layers of one sample together: what they are compared with is computed once.
    ordered = sorted(cases.values(), key=lambda case: case.sample)
    _see_ends(instrument, ordered, samples)
    _see_inside(instrument, ordered, samples)
    for layer, case in cases.items():
        case.hurts = _worst(view, layer, case)


def _see_ends(
    instrument: Instrument, cases: Sequence[LoweredLayer], samples: Sequence[Sample]
) -> None:
    """Note how far each output is off when the layer runs low and all others as its plan says."""
    types = instrument.model.elem_types
    ends = [name for name in instrument.view.outputs if types.get(name) == _FLOAT]
    if not ends:
        return
    # One session after the other: each holds the model's weights.
    exact: dict[int, Arrays] = {}
    numbers = sorted({case.sample for case in cases})
    for tensors in instrument.shown(ends, [samples[number] for number in numbers], None):
        number = numbers[tensors.sample]
        exact[number] = {**exact.get(number, {}), **tensors.exact}
    emulator = Emulator(instrument, ends)
    for case in cases:
        try:
            arrays = emulator.run(samples[case.sample], case.rest.without([case.index]), ends)
        except RuntimeError as error:  # an index that lost digits is out of range
            case.stopped = str(error)
            continue
        case.ends = {name: peak(exact[case.sample][name], arrays[name]) for name in ends}


def _see_inside(
    instrument: Instrument, cases: Sequence[LoweredLayer], samples: Sequence[Sample]
) -> None:
    """Note how far each tensor is off when the layer alone runs low, against all layers high.

    If the high type is FP32, that is against FP32; a 16-bit one has errors of its own.
    """
    high = Plan.all_high(len(instrument.model.table.candidates))
    wanted = {name for case in cases for name in case.tensors}
    names = [name for name in computed(instrument.model) if name in wanted]
    for group in instrument.groups(names, samples[0]):
        emulator = Emulator(instrument, group)
        for number, of_sample in groupby(cases, key=lambda case: case.sample):
            values = emulator.run(samples[number], high)
            for case in of_sample:
                own = [name for name in case.tensors if name in values]
                try:
                    arrays = emulator.run(samples[number], high.without([case.index]), own)
                except RuntimeError as error:  # as above
                    case.stopped = case.stopped or str(error)
                    continue
                case.strayed |= {name: strayed(values[name], arrays[name]) for name in own}


def _worst(view: View, layer: str, case: LoweredLayer) -> Hurt | None:
    """Return the output that is hurt most, with the way of the error to it."""
    reached = view.behind(layer)
    errors = {name: e for name, e in case.ends.items() if view.maker.get(name) in reached}
    if not errors:
        return None
    output = max(errors, key=lambda name: errors[name])

    def brought(node: onnx.NodeProto, name: str) -> float:
        deviation = case.strayed.get(name)
        if deviation is None:
            return 0.0
        return deviation.error if node.op_type in _ADDING else deviation.relative

    # The way is known only where the error was followed; else the shortest one stands for it.
    followed = any(name in case.strayed for name in view.by_name[view.maker[output]].output)
    path = view.carried(layer, output, brought) if followed else view.way(layer, output)
    return Hurt(
        output=output,
        error=errors[output],
        path=path,
        errors=[case.largest(view.by_name[name].output) for name in path] if followed else [],
    )


def strayed(exact: NDArray[Any], emulated: NDArray[Any]) -> Strayed:
    """Return how far a tensor is off, over the places where what it is compared with is finite.

    The error is infinite where the shapes differ, as behind rows that were chosen otherwise.
    """
    compared = _where_finite(exact, emulated)
    if compared is None:
        return Strayed(error=float("inf"), size=float("inf"))
    values, low_values = compared
    return Strayed(error=_norm(low_values - values), size=_norm(values))


def _where_finite(
    exact: NDArray[Any], emulated: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return both where `exact` is finite; None for other shapes, and for NaN and Inf there."""
    if exact.shape != emulated.shape:
        return None
    fine = np.isfinite(exact)
    values, low_values = (exact, emulated) if fine.all() else (exact[fine], emulated[fine])
    return (values, low_values) if np.isfinite(low_values).all() else None


def _norm(values: NDArray[Any]) -> float:
    # Squares of FP32 values beyond 1.8e19 overflow FP32.
    return float(np.sqrt(np.square(values, dtype=np.float64).sum()))


def peak(exact: NDArray[Any], emulated: NDArray[Any]) -> float:
    """Return the largest error as a share of the largest value.

    It is infinite for NaN, Inf and other shapes.
    """
    compared = _where_finite(exact, emulated)
    if compared is None:
        return float("inf")
    values = np.asarray(compared[0], np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    return float(np.abs(values - compared[1]).max(initial=0.0)) / (largest or 1.0)
