"""Runs a model and shows the tensors inside: in FP32, and as the emulator rounds them.

One pass over all samples notes magnitudes where they are asked for, NaN and Inf everywhere.

Values are held for one sample and one group of tensors at a time. A session cannot reuse the
memory of tensors that are outputs, so each group has a session of its own. That of the latest
group serves those inside it, if the model is small.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.recurrences import Recurrences
from precision_bisect.backends.emulation.semantics import Semantics, distinct
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph, switch
from precision_bisect.explaining.diagnosis.findings import Birth
from precision_bisect.explaining.diagnosis.holding import Held, Magnitudes
from precision_bisect.graphs.graph import opset, showing
from precision_bisect.graphs.load import Model, at_least_opset
from precision_bisect.graphs.lowtypes import KINDS, LOW_TYPES
from precision_bisect.graphs.node_views import Shape, View, computed, tensor_shapes
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.weights import total_bytes
from precision_bisect.layer_table import forms_of, rounded_to
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Backend, Sample
from precision_bisect.settings.targets import DEFAULT_TARGETS, Inside, TargetName

AT_ONCE_BYTES = 2**27
"""Bytes of one sample's FP32 values that are held at a time, estimated by shapes; emulated ones
take as much again. A limit on memory: findings are the same with half and double
(`benchmarks/constants.py`)."""
# Bytes that a tensor of unknown shape counts as: that of 32 in `AT_ONCE_BYTES`.
_UNKNOWN_BYTES = 2**22

# The largest magnitude that every 16-bit type holds.
_HELD_BY_ALL = min(low.largest for low in LOW_TYPES.values())
# Bytes of weights up to which the latest sessions stay open. A limit on memory.
_HELD_BYTES = 2**25

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTensors:
    """One sample's values of some tensors by name: exact in FP32 and, if a plan is, emulated."""

    sample: int
    exact: Arrays
    emulated: Arrays


class Instrument:
    """Shows tensors of a model under plans of a pair of types.

    `scales` are those of everything that some plan quantizes. Of the `targets` the one is emulated
    that stores most inside layers; an `emulator` of this model may have its graph at hand. Methods
    raise ModelError where the model cannot be loaded or brought to the opset that its types need.
    """

    def __init__(
        self,
        model: Model,
        pair: Pair,
        threads: int = 0,
        scales: Scales | None = None,
        *,
        targets: Sequence[TargetName] = DEFAULT_TARGETS,
        emulator: Backend | None = None,
    ) -> None:
        self.model = model
        self._emulator = emulator
        self.pair = pair
        self.threads = threads
        self._scales = scales or Scales()
        self._target = distinct(model, pair, targets)[-1]
        self._latest: dict[str, tuple[frozenset[str], Session]] = {}
        forms = forms_of(model.table, pair)
        self.index = {str(name): i for i, name in enumerate(model.table.names)}
        self.stored = {
            out: (str(layer.name), forms[layer.name])
            for layer in model.table.layers
            if layer.name in forms
            for out in layer.outputs
        }

    def session(
        self,
        kind: str,
        proto: onnx.ModelProto,
        weights: Arrays,
        names: Sequence[str],
        *,
        optimised: bool = True,
    ) -> Session:
        """Return a session of a graph with these tensors among its outputs."""
        shown, session = self._latest.pop(kind, (frozenset(), None))
        if session is None or not shown.issuperset(names):
            # One session after the other: each holds the model's weights.
            del session
            shown = frozenset(names)
            shown_graph = showing(proto, names, self.model.elem_types)
            session = Session(shown_graph, weights, self.threads, optimised=optimised)
        if total_bytes(weights) <= _HELD_BYTES:
            self._latest[kind] = shown, session
        return session

    @cached_property
    def view(self) -> View:
        """The model's main graph."""
        return View(self.model)

    @cached_property
    def graph(self) -> SwitchedGraph:
        """The switched graph, made when it is needed: it takes as much memory as the model."""
        if isinstance(self._emulator, EmulatedBackend) and (
            held := self._emulator.held_graph(self.model, self._target)
        ):
            return held
        kinds = [KINDS[name] for name in rounded_to(self.model.table, self.pair)]
        newest = max(kinds, key=lambda kind: kind.lowest_opset)
        # A Cast to the low type may need a newer opset than the model has.
        usable = at_least_opset(self.model, newest.lowest_opset, newest.name)
        return switch(usable, self.pair, self._scales, target=self._target)

    @cached_property
    def recurrences(self) -> Recurrences:
        """The layers that store their state after every step."""
        return Recurrences(self.view, opset(self.model.proto))

    @cached_property
    def semantics(self) -> Semantics:
        """What the emulated target stores inside the model's layers."""
        return Semantics(self.model, self._target)

    def summed(self, nodes: Iterable[onnx.NodeProto], sample: Sample) -> dict[str, int]:
        """Return the layers that store sums for this sample, with the number of values in each."""
        means = [node for node in nodes if self.semantics.inside(node) is Inside.SUM]
        if not means:
            return {}
        sums, shapes = self.semantics.sums, self._shapes(sample)
        counts = {node.name: sums.summed(node, shapes.get(node.input[0])) for node in means}
        return {layer: count for layer, count in counts.items() if count}

    def _shapes(self, sample: Sample) -> Mapping[str, Shape]:
        return tensor_shapes(self.model, {key: array.shape for key, array in sample.items()})

    def groups(self, names: Sequence[str], sample: Sample) -> Iterator[list[str]]:
        """Yield the names in groups that are looked at together, in order."""
        shapes = self._shapes(sample)
        group: list[str] = []
        group_bytes = 0
        for name in names:
            nbytes = 4 * prod(shapes[name]) if name in shapes else _UNKNOWN_BYTES
            if group and group_bytes + nbytes > AT_ONCE_BYTES:
                yield group
                group, group_bytes = [], 0
            group.append(name)
            group_bytes += nbytes
        if group:
            yield group

    def shown(
        self, names: Sequence[str], samples: Sequence[Sample], plan: Plan | None
    ) -> Iterator[ShownTensors]:
        """Yield all samples of each group of tensors: in FP32 and, with a plan, emulated under it.

        Graph inputs may be among the tensors.
        """
        for group in self.groups(names, samples[0]):
            session = self.session("exact", self.model.proto, self.model.weights, group)
            emulator = None if plan is None else Emulator(self, group)
            for number, sample in enumerate(samples):
                computed = [name for name in group if name not in sample]
                exact = {**sample, **session.run(sample, computed)}
                yield ShownTensors(
                    sample=number,
                    exact={name: np.asarray(exact[name]) for name in group},
                    emulated=emulator.run(sample, plan) if emulator and plan is not None else {},
                )


class Emulator:
    """Gives a group of tensors of the main graph as any plan stores them.

    That its session is not `optimised` pays for few runs: nothing is fused across what is shown.
    """

    def __init__(
        self, instrument: Instrument, names: Sequence[str], *, optimised: bool = True
    ) -> None:
        self._names = names
        self._of = instrument
        graph = instrument.graph
        raw = [graph.raw.get(name, name) for name in names]
        self._session = instrument.session(
            "emulated", graph.proto, graph.weights, raw, optimised=optimised
        )

    def run(
        self,
        sample: Sample,
        plan: Plan,
        names: Sequence[str] | None = None,
        *,
        rounded: bool = True,
    ) -> dict[str, NDArray[Any]]:
        """Return the tensors, or these of them, by name, for one sample; raw if not `rounded`.

        Raises RuntimeError.
        """
        # The switched graph reads its plan from an input, so one session serves every plan.
        of, graph = self._of, self._of.graph
        low = np.ones(len(of.index), np.bool_)
        low[list(plan.kept)] = False
        feed = {**sample, FLAGS_INPUT: graph.switches.flags(low)}
        names = self._names if names is None else names
        raw = {name: graph.raw.get(name, name) for name in names}
        wanted = [name for name in raw.values() if name not in sample]
        arrays = {**sample, **self._session.run(feed, wanted)}
        shown = {name: np.asarray(arrays[raw[name]]) for name in raw}
        return {n: self.stored(n, shown[n], plan) for n in shown} if rounded else shown

    def stored(self, name: str, array: NDArray[Any], plan: Plan) -> NDArray[Any]:
        """Return a raw tensor as it is stored under a plan."""
        if name not in self._of.stored:
            return array
        # The raw tensor is that before its readers round it; here it is rounded as it is stored.
        layer, forms = self._of.stored[name]
        index = self._of.index.get(layer)
        form = forms.high if index in plan.kept else forms.low
        kind = LOW_TYPES.get(form.stored)
        return array if kind is None or array.dtype != np.float32 else kind.round(array)


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
    for tensors in instrument.shown(list(names), samples, plan):
        for name, exact in tensors.exact.items():
            if name in watched.magnitudes:
                watched.magnitudes[name].add(exact, measured[name], tensors.sample)
            _note_still(watched.still, name, exact)
            kind = _broken(exact, tensors.emulated.get(name, exact))
            if kind:
                watched.broken.setdefault(name, {})[tensors.sample] = kind
    return watched


def broken_under(
    instrument: Instrument, samples: Sequence[Sample], plan: Plan
) -> dict[str, dict[int, str]]:
    """Return the `broken` that `watched_under` would: FP32 runs only where NaN or Inf appears.

    Raises RuntimeError where a run fails.
    """
    broken: dict[str, dict[int, str]] = {}
    for group in instrument.groups(computed(instrument.model), samples[0]):
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
