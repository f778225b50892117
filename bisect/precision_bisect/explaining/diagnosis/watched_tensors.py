"""One pass over all samples: magnitudes where they are asked for, NaN and Inf everywhere.

Where a file computes in a 16-bit type by itself, it is a pass with every layer high.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Birth, Broken, FileRounding
from precision_bisect.explaining.diagnosis.holding import Held, Magnitudes
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.node_views import View
from precision_bisect.layer_table import Exclusion
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample

_UNSEEN = (Exclusion.CONSTANT, Exclusion.SHAPE)
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(slots=True)
class WatchedTensors:
    """What one pass showed, by tensor name.

    `magnitudes` are those in FP32. `broken` says in which samples NaN or Inf appears with every
    layer low while FP32 is finite. `still` has the tensors that only ever had one value.
    `stopped` is what ONNX Runtime says where it cannot run with every layer low, else "".
    """

    magnitudes: dict[str, Magnitudes] = field(default_factory=dict)
    broken: dict[str, dict[int, str]] = field(default_factory=dict)
    still: dict[str, float | None] = field(default_factory=dict)
    stopped: str = ""


def watch(
    instrument: Instrument, measured: Mapping[str, Held], samples: Sequence[Sample]
) -> WatchedTensors:
    """Run every sample in FP32 and with every layer low, and look at all FP32 tensors.

    `measured` are the tensors whose magnitudes are wanted, each with what holds it when it is low.
    Where a run fails with every layer low, FP32 alone is looked at. Raises RuntimeError where one
    in FP32 fails.
    """
    try:
        return watched_under(instrument, measured, samples, Plan.of(()))
    except RuntimeError as error:
        found = watched_under(instrument, measured, samples, None)
        found.stopped = str(error)
        return found


def watched_under(
    instrument: Instrument,
    measured: Mapping[str, Held],
    samples: Sequence[Sample],
    plan: Plan | None,
) -> WatchedTensors:
    """Return what `watch` does, under any plan; for None that of FP32 on `measured` tensors alone.

    Raises RuntimeError where a run fails.
    """
    names = dict.fromkeys((*(() if plan is None else computed(instrument.model)), *measured))
    found = WatchedTensors(magnitudes={name: Magnitudes() for name in measured})
    for shown in instrument.shown(list(names), samples, plan):
        for name, exact in shown.exact.items():
            if name in found.magnitudes:
                found.magnitudes[name].add(exact, measured[name], shown.sample)
            _note_still(found.still, name, exact)
            kind = _broken(exact, shown.emulated.get(name, exact))
            if kind:
                found.broken.setdefault(name, {})[shown.sample] = kind
    return found


def births(view: View, watched: WatchedTensors) -> list[Birth]:
    """Return the layers in which NaN or Inf first appears, in network order, with its ways."""
    spoilt = frozenset(view.maker[name] for name in watched.broken if name in view.maker)
    found = []
    for node in view.nodes:
        kinds = _born(node, watched.broken)
        if not kinds:
            continue
        ways = [(out, view.way(node.name, out, spoilt)) for out in view.outputs]
        # On the way to every output the values may become finite again, as behind a Clip.
        end = (None, view.farthest(node.name, spoilt))
        output, path = next(((o, w) for o, w in ways if w), end)
        born = "nan" if "nan" in kinds else "inf"
        found.append(Birth(layer=node.name, born=born, path=path, output=output))
    return found


def _born(node: onnx.NodeProto, broken: Mapping[str, Mapping[int, str]]) -> set[str]:
    """Return the kinds that a node makes in a sample in which all that it reads is finite."""
    read = {sample for name in node.input for sample in broken.get(name, ())}
    return {
        kind
        for name in node.output
        for sample, kind in broken.get(name, {}).items()
        if sample not in read
    }


def computed(model: Model) -> list[str]:
    """Return the FP32 tensors that are computed from the inputs, in network order."""
    return [
        name
        for layer in model.table.layers
        if layer.exclusion not in _UNSEEN
        for name in layer.outputs
        if model.elem_types.get(name) == _FLOAT
    ]


def _note_still(still: dict[str, float | None], name: str, array: NDArray[Any]) -> None:
    """Note a tensor's only value, None once it has had two; NaN counts as two."""
    if array.size == 0 or (name in still and still[name] is None):
        return
    first = float(array.reshape(-1)[0])
    # A single element is no constant: it may be a scalar that depends on the input.
    alike = array.size > 1 and bool((array == first).all()) and still.get(name, first) == first
    still[name] = first if alike else None


def _broken(exact: NDArray[Any], emulated: NDArray[Any]) -> str:
    """Return the kind of value where FP32 alone is finite: "nan", "inf", or "" for finite ones."""
    if exact.shape != emulated.shape:
        return ""
    wrong = np.isfinite(exact) & ~np.isfinite(emulated)
    if not wrong.any():
        return ""
    return "nan" if np.isnan(emulated[wrong]).any() else "inf"


def file_rounding(instrument: Instrument, samples: Sequence[Sample]) -> FileRounding | None:
    """Return what the file rounds with every layer high; None where it declares nothing low.

    Raises RuntimeError where a run fails.
    """
    model = instrument.model
    if not model.low_tensors:
        return None
    high = Plan.all_high(len(model.table.candidates))
    watched = watched_under(instrument, {}, samples, high)
    broken = []
    for birth in births(instrument.view, watched):
        made = next(each.outputs for each in model.table.layers if each.name == birth.layer)
        seen = {sample for name in made for sample in watched.broken.get(name, ())}
        broken.append(Broken(layer=birth.layer, born=birth.born, samples=len(seen)))
    kinds = {LOW_TYPES[name].onnx_type: name for name in LOW_TYPES}
    return FileRounding(
        types=sorted({kinds[kind] for kind in model.low_tensors.values() if kind in kinds}),
        layers=[
            str(each.name)
            for each in model.table.layers
            if not model.low_tensors.keys().isdisjoint(each.outputs)
        ],
        broken=broken,
        of_samples=len(samples),
    )
