"""What one layer does to the outputs when it runs low, and how its error travels there.

Each layer is run low alone on the emulator. Two comparisons: the outputs, amid the answer's plan,
say how much it hurts; the tensors between, amid all-high, say where the error goes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Hurt
from precision_bisect.explaining.diagnosis.instrument import Arrays, Emulator, Instrument, computed
from precision_bisect.graphs.node_views import View
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample

MOST_FOLLOWED = 64
"""Layers whose error is followed through the model, at most, in network order. A limit on the
time after the search: all values are held, and compared, for each."""
_ADDING = frozenset(("Add", "Sub", "Sum", "Mean", "Concat"))
"""Operators that add: an operand's error counts by its size, not relative to the operand."""
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredLayer:
    """A layer to run low, on the sample in which its values are largest.

    `rest` is the plan around it: the answer for a kept layer, else every layer high. `follow` asks
    for its error on the way to the output.
    """

    index: int
    outputs: Sequence[str]
    rest: Plan
    sample: int
    follow: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """The relative error of a layer's outputs when it alone runs low, and the output it hurts.

    `error_out` is None where the model does not run then. `stopped` is what ONNX Runtime says of
    that, "" where the model runs.
    """

    error_out: float | None
    hurts: Hurt | None
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strayed:
    """How far a tensor is off: the norms of the error and of the values.

    Where NaN or Inf came out the error is infinite.
    """

    error: float
    size: float

    @property
    def relative(self) -> float:
        """The error relative to the values; 0 if all values and errors are 0."""
        if np.isinf(self.error):
            return self.error
        return self.error / self.size if self.size else 0.0


@dataclass(slots=True)
class _Trail:
    """What was seen of one layer: its tensors amid all-high, and the outputs amid its plan."""

    case: LoweredLayer
    tensors: Sequence[str]
    strayed: dict[str, Strayed] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    stopped: str = ""


def harms(
    instrument: Instrument, cases: Mapping[str, LoweredLayer], samples: Sequence[Sample]
) -> dict[str, Harm]:
    """Return the harm of each layer, by name.

    For each layer it takes one inference for the outputs, and one for each group of tensors that
    are looked at together. For each sample it takes as many to compare with. Raises RuntimeError
    where a run in FP32 fails.
    """
    trails = dict(_trails(instrument, cases))
    if not trails:
        return {}
    _see_ends(instrument, trails.values(), samples)
    _see_inside(instrument, trails.values(), samples)
    return {
        layer: Harm(
            error_out=max(
                (trail.strayed[n].relative for n in trail.case.outputs if n in trail.strayed),
                default=None,
            ),
            hurts=_worst(instrument.view, layer, trail),
            stopped=trail.stopped,
        )
        for layer, trail in trails.items()
    }


def _trails(
    instrument: Instrument, cases: Mapping[str, LoweredLayer]
) -> Iterator[tuple[str, _Trail]]:
    """Yield the tensors to look at for each layer: its own, and those behind it."""
    inside = computed(instrument.model)
    for layer, case in cases.items():
        # Nothing else can differ while this layer alone runs low.
        behind = instrument.view.behind(layer) if case.follow else frozenset()
        own = [name for name in inside if instrument.view.maker.get(name) in behind]
        yield layer, _Trail(case, list(dict.fromkeys((*case.outputs, *own))))


def _see_ends(
    instrument: Instrument, trails: Collection[_Trail], samples: Sequence[Sample]
) -> None:
    """Note how far each output is off when the layer runs low and all others as its plan says."""
    types = instrument.model.elem_types
    ends = [name for name in instrument.view.outputs if types.get(name) == _FLOAT]
    if not ends:
        return
    # One session after the other: each holds the model's weights.
    exact: dict[int, Arrays] = {}
    numbers = sorted({trail.case.sample for trail in trails})
    for tensors in instrument.shown(ends, [samples[number] for number in numbers], None):
        number = numbers[tensors.sample]
        exact[number] = {**exact.get(number, {}), **tensors.exact}
    emulator = Emulator(instrument, ends)
    for trail in trails:
        case = trail.case
        try:
            arrays = emulator.run(samples[case.sample], case.rest.without([case.index]), ends)
        except RuntimeError as error:  # an index that lost digits is out of range
            trail.stopped = str(error)
            continue
        trail.ends = {name: peak(exact[case.sample][name], arrays[name]) for name in ends}


def _see_inside(
    instrument: Instrument, trails: Collection[_Trail], samples: Sequence[Sample]
) -> None:
    """Note how far each tensor is off when the layer alone runs low, against all layers high.

    If the high type is FP32, that is against FP32; a 16-bit one has errors of its own.
    """
    high = Plan.all_high(len(instrument.model.table.candidates))
    wanted = {name for trail in trails for name in trail.tensors}
    names = [name for name in computed(instrument.model) if name in wanted]
    for group in instrument.groups(names, samples[0]):
        emulator = Emulator(instrument, group)
        for trail, values in _visits(trails, samples, partial(emulator.run, plan=high)):
            case = trail.case
            own = [name for name in trail.tensors if name in values]
            try:
                arrays = emulator.run(samples[case.sample], high.without([case.index]), own)
            except RuntimeError as error:  # as above
                trail.stopped = trail.stopped or str(error)
                continue
            trail.strayed |= {name: strayed(values[name], arrays[name]) for name in own}


def _visits(
    trails: Collection[_Trail], samples: Sequence[Sample], base: Callable[[Sample], Arrays]
) -> Iterator[tuple[_Trail, Arrays]]:
    """Yield each layer with what to compare with on its sample."""
    number, values = -1, dict[str, NDArray[Any]]()
    # Layers of one sample together: what they are compared with is computed once.
    for trail in sorted(trails, key=lambda trail: trail.case.sample):
        if trail.case.sample != number:
            number = trail.case.sample
            values = dict(base(samples[number]))
        yield trail, values


def _worst(view: View, layer: str, trail: _Trail) -> Hurt | None:
    """Return the output that is hurt most, with the way of the error to it."""
    reached = view.behind(layer)
    errors = {name: e for name, e in trail.ends.items() if view.maker.get(name) in reached}
    if not errors:
        return None
    output = max(errors, key=lambda name: errors[name])

    def brought(node: onnx.NodeProto, name: str) -> float:
        deviation = trail.strayed.get(name)
        if deviation is None:
            return 0.0
        return deviation.error if node.op_type in _ADDING else deviation.relative

    followed = any(name in trail.strayed for name in view.by_name[view.maker[output]].output)
    path = view.carried(layer, output, brought) if followed else view.way(layer, output)
    return Hurt(
        output=output,
        error=errors[output],
        path=path,
        errors=[_error_of(view, name, trail) for name in path] if followed else [],
    )


def _error_of(view: View, layer: str, trail: _Trail) -> float | None:
    """Return the relative error of a node's outputs; None if none of them is FP32."""
    deviations = [trail.strayed[n] for n in view.by_name[layer].output if n in trail.strayed]
    return max((deviation.relative for deviation in deviations), default=None)


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
