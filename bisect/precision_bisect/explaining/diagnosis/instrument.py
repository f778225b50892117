"""Runs a model and shows the tensors inside: in FP32, and as the emulator rounds them.

Values are held for one sample and one group of tensors at a time. A session cannot reuse the
memory of tensors that are outputs, so each group has a session of its own. That of the latest
group serves those inside it, if the model is small.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from precision_bisect.graphs.graph import opset, showing
from precision_bisect.graphs.load import Model, at_least_opset
from precision_bisect.graphs.lowtypes import KINDS, LOW_TYPES
from precision_bisect.graphs.node_views import Shape, View, tensor_shapes
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

    def feed(self, sample: Sample, plan: Plan) -> Sample:
        """Return what the switched graph reads of a sample and a plan.

        It reads its plan from an input, so one session serves every plan.
        """
        low = np.ones(len(self.index), np.bool_)
        low[list(plan.kept)] = False
        return {**sample, FLAGS_INPUT: self.graph.switches.flags(low)}

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
        graph = self._of.graph
        names = self._names if names is None else names
        raw = {name: graph.raw.get(name, name) for name in names}
        wanted = [name for name in raw.values() if name not in sample]
        arrays = {**sample, **self._session.run(self._of.feed(sample, plan), wanted)}
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
