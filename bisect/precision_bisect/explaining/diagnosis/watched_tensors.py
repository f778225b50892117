"""What runs of a model show of its tensors: magnitudes, NaN and Inf, and where these are born.

Where tensors are too large to be shown at once, reductions inside the graph tell what is asked of
all of them (see `inner_numbers`), and those alone are shown that these do not settle.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Birth
from precision_bisect.explaining.diagnosis.holding import Held, Magnitudes
from precision_bisect.explaining.diagnosis.inner_numbers import InnerNumbers, What
from precision_bisect.explaining.diagnosis.instrument import Emulator, Instrument
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.node_views import View, computed
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample

# The largest magnitude that every 16-bit type holds.
_HELD_BY_ALL = min(low.largest for low in LOW_TYPES.values())
_SURE = 0.99
"""Share of a limit below which a norm says that no magnitude reaches it. A sum of squares in FP32
never falls, so it is no less than the largest of them but for a rounding."""


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
        watched = watched_under(instrument, measured, samples, None)
        watched.stopped = str(error)
        return watched


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
    watched = WatchedTensors(magnitudes={name: Magnitudes() for name in measured})
    if plan is not None and not _fit(instrument, list(names), samples):
        watched.broken = broken_under(instrument, samples, plan)
        still = _reduced(instrument, computed(instrument.model), samples)
        watched.still = {name: value for name, value in still.items() if name not in measured}
        names, plan = dict.fromkeys(n for n in names if n not in watched.still), None
    for tensors in instrument.shown(list(names), samples, plan):
        for name, exact in tensors.exact.items():
            if name in watched.magnitudes:
                watched.magnitudes[name].add(exact, measured[name], tensors.sample)
            _note_still(watched.still, name, exact)
            kind = _broken(exact, tensors.emulated.get(name, exact))
            if kind:
                watched.broken.setdefault(name, {})[tensors.sample] = kind
    return watched


def _fit(instrument: Instrument, names: Sequence[str], samples: Sequence[Sample]) -> bool:
    """Tell whether one inference shows all of these tensors: then reductions save none."""
    return len([*islice(instrument.groups(names, samples[0]), 2)]) < 2


def _reduced(
    instrument: Instrument, names: Sequence[str], samples: Sequence[Sample]
) -> dict[str, float | None]:
    """Return the only value of the tensors that are still in FP32, None for those that are not.

    Those with NaN or Inf, or without values, are left out: reductions do not tell of them.
    """
    model = instrument.model
    numbers = InnerNumbers(model.proto, model.weights, names, What, instrument.threads)
    runs = [numbers.run(sample) for sample in samples]
    still: dict[str, float | None] = {}
    for name in names:
        seen = [run[name] for run in runs]
        if all(0 < of[What.SIZE] and of[What.NORM] < math.inf for of in seen):
            values = {of[end] for of in seen for end in (What.LEAST, What.LARGEST)}
            alone = len(values) == 1 and all(of[What.SIZE] > 1 for of in seen)
            still[name] = values.pop() if alone else None
    return still


def broken_under(
    instrument: Instrument, samples: Sequence[Sample], plan: Plan
) -> dict[str, dict[int, str]]:
    """Return the `broken` that `watched_under` would: FP32 runs only where NaN or Inf appears.

    Raises RuntimeError where a run fails.
    """
    names = computed(instrument.model)
    if not _fit(instrument, names, samples):
        names = _far(instrument, names, samples, plan)
    broken: dict[str, dict[int, str]] = {}
    for group in instrument.groups(names, samples[0]):
        emulator = Emulator(instrument, group, optimised=False)
        for number, sample in enumerate(samples):
            raw = emulator.run(sample, plan, rounded=False)
            # Rounding takes longer than the inference, and makes no smaller values infinite.
            far = (n for n, a in raw.items() if not np.abs(a).max(initial=0.0) <= _HELD_BY_ALL)
            stored = {name: emulator.stored(name, raw[name], plan) for name in far}
            wrong = {name: a for name, a in stored.items() if not np.isfinite(a).all()}
            if not wrong:
                continue
            model = instrument.model
            session = instrument.session("exact", model.proto, model.weights, group)
            exact = session.run(sample, list(wrong))
            for name, array in wrong.items():
                if kind := _broken(np.asarray(exact[name]), array):
                    broken.setdefault(name, {})[number] = kind
    return broken


def _far(
    instrument: Instrument, names: Sequence[str], samples: Sequence[Sample], plan: Plan
) -> list[str]:
    """Return the tensors that may hold what some 16-bit type does not, under a plan."""
    graph = instrument.graph
    raw = {name: graph.raw.get(name, name) for name in names}
    numbers = InnerNumbers(
        graph.proto, graph.weights, raw.values(), [What.NORM], instrument.threads
    )
    runs = [numbers.run(instrument.feed(sample, plan)) for sample in samples]
    held = _SURE * _HELD_BY_ALL
    return [n for n in names if not all(run[raw[n]][What.NORM] < held for run in runs)]


def births(view: View, broken: Mapping[str, Mapping[int, str]]) -> list[Birth]:
    """Return the layers in which NaN or Inf first appears, in network order, with its ways.

    `broken` is as of `WatchedTensors`.
    """
    spoilt = frozenset(view.maker[name] for name in broken if name in view.maker)
    spread = []
    for node in view.nodes:
        kinds = _born(node, broken)
        if not kinds:
            continue
        ways = [(out, view.way(node.name, out, spoilt)) for out in view.outputs]
        # On the way to every output the values may become finite again, as behind a Clip.
        end = (None, view.farthest(node.name, spoilt))
        output, path = next(((o, w) for o, w in ways if w), end)
        born = "nan" if "nan" in kinds else "inf"
        spread.append(Birth(layer=node.name, born=born, path=path, output=output))
    return spread


def _born(node: onnx.NodeProto, broken: Mapping[str, Mapping[int, str]]) -> set[str]:
    """Return the kinds that a node makes in a sample in which all that it reads is finite."""
    read = {sample for name in node.input for sample in broken.get(name, ())}
    return {
        kind
        for name in node.output
        for sample, kind in broken.get(name, {}).items()
        if sample not in read
    }


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
