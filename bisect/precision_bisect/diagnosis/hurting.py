"""What one layer does to the outputs when it runs low, and what it adds to the error itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.diagnosis.findings import Hurt
from precision_bisect.diagnosis.instrument import Instrument
from precision_bisect.diagnosis.wiring import Wiring
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layer to run low, on the sample in which its values are largest.

    `rest` is the plan around it: the answer for a kept layer, else every layer high.
    """

    index: int
    outputs: Sequence[str]
    rest: Plan
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """The error that a layer stores when it alone runs low, relative; and the output it hurts."""

    error_out: float
    hurts: Hurt | None


def harms(
    instrument: Instrument, cases: Mapping[str, Case], samples: Sequence[Sample]
) -> dict[str, Harm]:
    """Return the harm of each layer, by name: two inferences each, and one for each sample.

    Raises RuntimeError where a run fails.
    """
    model = instrument.model
    wiring = Wiring(model)
    high = Plan.all_high(len(model.table.candidates))
    ends = [name for name in wiring.outputs if model.elem_types.get(name) == 1]
    owner = {name: layer for layer, case in cases.items() for name in case.outputs}
    found: dict[str, Harm] = {}
    for group in instrument.groups([*owner], samples[0]):
        names = list(dict.fromkeys((*group, *ends)))
        exact, emulator = instrument.exact(names), instrument.emulator(names)
        # Layers of one sample together: its FP32 values are computed once.
        layers = sorted({owner[name] for name in group}, key=lambda each: cases[each].sample)
        number, values = -1, dict[str, NDArray[Any]]()
        sample: Sample = {}
        for layer in layers:
            case = cases[layer]
            if case.sample != number:
                number, sample = case.sample, samples[case.sample]
                values = exact.run(sample, [name for name in names if name not in sample])
            own = [name for name in group if owner[name] == layer]
            alone = emulator.run(sample, high.without([case.index]), own)
            outputs = emulator.run(sample, case.rest.without([case.index]), ends)
            found[layer] = Harm(
                error_out=max(relative(values[name], alone[name]) for name in own),
                hurts=_worst(wiring, layer, values, outputs),
            )
    return found


def _worst(wiring: Wiring, layer: str, exact: Arrays, emulated: Arrays) -> Hurt | None:
    errors = {name: peak(exact[name], emulated[name]) for name in emulated if name in exact}
    ways = {name: way for name in errors if (way := wiring.way(layer, name))}
    if not ways:
        return None
    output = max(ways, key=lambda name: errors[name])
    return Hurt(output=output, error=errors[output], path=ways[output])


def relative(exact: NDArray[Any], emulated: NDArray[Any]) -> float:
    """Return the root mean square error relative to the values; infinity for NaN or Inf."""
    fine = np.isfinite(exact)
    values, found = np.asarray(exact[fine], np.float64), emulated[fine]
    if not np.isfinite(found).all():
        return float("inf")
    size = float(np.square(values).sum())
    return float(np.square(values - found).sum() / size) ** 0.5 if size else 0.0


def peak(exact: NDArray[Any], emulated: NDArray[Any]) -> float:
    """Return the largest error as a share of the largest value; infinity for NaN or Inf."""
    fine = np.isfinite(exact)
    values, found = np.asarray(exact[fine], np.float64), emulated[fine]
    if not np.isfinite(found).all():
        return float("inf")
    largest = float(np.abs(values).max(initial=0.0))
    return float(np.abs(values - found).max(initial=0.0)) / (largest or 1.0)
