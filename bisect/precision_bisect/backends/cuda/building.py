"""Plans as ONNX Runtime sessions, and the layers that ONNX Runtime cannot run low.

The opener decides which provider the sessions use. On any provider a low layer must not be placed
on the CPU provider, which computes 16-bit operators in FP32.

Which kernel ran each layer is in two records of a session. When the graph is partitioned, ONNX
Runtime notes which provider takes which node; most fusions come later. The profile of a run names
the kernels that ran, with the types of their tensors. A kernel keeps its node's name, or is called
`<layer>/<fusion>Fusion/` after one of the layers that it replaces, or has a name of its own.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.opening import Opened, Opener, OpeningError, opening_failures
from precision_bisect.graphs.batching import rebatched
from precision_bisect.graphs.graph import has_function, opset
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.pinning import without_cuda_kernel
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.free_space import trim
from precision_bisect.plan import Plan
from precision_bisect.precisions import HighName
from precision_bisect.protocols import BackendFailure
from precision_bisect.trial import Honour, LayerHonour, TrialStatus

if TYPE_CHECKING:
    import onnxruntime


TIMED = "_kernel_time"
_FUSED = re.compile(r"(.+)/\w+Fusion(?:/.*)?")
# The types that layers are kept in, in the words of ONNX Runtime.
_NAMES: Mapping[HighName, str] = {"fp32": "float", "fp16": "float16", "bf16": "bfloat16"}
_FLOATS = frozenset(_NAMES.values())
_UNNAMED = ""
# Sessions that are opened to find layers that cannot run low, at most; each names one or more. A
# bound.
_MOST_ROUNDS = 100
_ON_CPU = "ONNX Runtime places it on its CPU provider, which would compute it in FP32"
# Parts of errors that hold for every node of the operator, not only for the one named.
_ABOUT_OPERATORS = ("Could not find an implementation", "is invalid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKernel:
    """One kernel that ran: its node's name and operator, its provider, and its float types.

    `types` are ONNX Runtime's names of the floating-point types that it read or wrote.
    """

    name: str
    op_type: str
    provider: str
    types: frozenset[str]


def placement(session: "onnxruntime.InferenceSession") -> Mapping[str, frozenset[str]]:
    """Return the providers that take the nodes of each name.

    A node without a name is part of an operator's body: if ONNX Runtime has no kernel for an
    operator, it puts the body that the ONNX standard defines in its place.
    """
    placed: dict[str, set[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            placed.setdefault(node.name, set()).add(subgraph.ep_name)
    return {name: frozenset(providers) for name, providers in placed.items()}


def read_profile(path: Path) -> list[CudaKernel]:
    """Return the kernels that ran, in order, from a profile that a session wrote."""
    kernels = []
    for event in json.loads(path.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith(TIMED):
            facts = event["args"]
            shapes = (*facts.get("input_type_shape", ()), *facts.get("output_type_shape", ()))
            kernel = CudaKernel(
                name=event["name"].removesuffix(TIMED),
                op_type=facts["op_name"],
                provider=facts["provider"],
                types=_FLOATS.intersection(kind for tensor in shapes for kind in tensor),
            )
            kernels.append(kernel)
    return kernels


class Trace:
    """What the kernels of a run tell about layers; `layers` has the names of all nodes."""

    def __init__(self, kernels: Sequence[CudaKernel], layers: Collection[str]) -> None:
        self._of: dict[str, list[CudaKernel]] = {}
        for kernel in kernels:
            self._of.setdefault(layer_called(kernel.name, layers), []).append(kernel)

    def on_cpu(self, names: Collection[LayerName]) -> list[LayerName]:
        """Return those of the layers that a kernel of the CPU provider computed."""
        return [name for name in names if any(k.provider == CPU for k in self._of.get(name, []))]

    def honour(self, name: LayerName, high: HighName) -> LayerHonour:
        """Return whether a kept layer was computed in the high type, or in FP32."""
        kernels = self._of.get(name, [])
        types = frozenset[str]().union(*(kernel.types for kernel in kernels))
        ran = f"ran as {_words(k.op_type for k in kernels)} on {_words(types)}"
        enough = {_NAMES["fp32"], _NAMES[high]}
        if not kernels:
            honour = Honour.NOT_OBSERVABLE
            ran = "no kernel has its name: ONNX Runtime fused it into another or folded it"
        elif types <= enough:
            honour = Honour.HONOURED
        # A fused kernel reads what its other layers read: its types may be theirs.
        elif types.isdisjoint(enough) and all(kernel.name == name for kernel in kernels):
            honour = Honour.DEMOTED
        else:
            honour, ran = Honour.NOT_OBSERVABLE, f"{ran}, which may compute in either"
        return LayerHonour(layer=name, honoured=honour, evidence=ran, found=bool(kernels))


def layer_called(kernel: str, layers: Collection[str]) -> str:
    """Return the name of the layer that a kernel is called after, or its own."""
    fused = _FUSED.fullmatch(kernel)
    # A model may have a node with such a name.
    return fused[1] if fused and kernel not in layers else kernel


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSession:
    """A session that was `opened` for a plan, and the layers of the plan.

    `layers` are the names of all nodes of the model. `kept` and `low` are those of its candidates
    that stay high and run low, in network order. `high` is the type of those that stay.
    `rebatched` opens the plan for another batch, as the session was; it raises what
    `TypedSessions.open` does.
    """

    opened: Opened
    layers: frozenset[str]
    kept: Sequence[LayerName]
    low: Sequence[LayerName]
    high: HighName
    rebatched: Callable[[int], Opened]


class TypedSessions:
    """Opens plans of the writer's model as typed graphs, in files below `folder`.

    The `opener` opens those for which no other one is named. `weights` is as in `BackendTask`.
    """

    def __init__(
        self, writer: TypedWriter, opener: Opener, folder: Path, weights: Path | None = None
    ) -> None:
        self._model = writer.model
        self._layers = {layer.name: layer for layer in writer.model.table.layers}
        asked_forms = writer.model.table.asked.items()
        self._asked_high = [name for name, form in asked_forms if form == writer.pair.high_form]
        self._asked_low = [name for name, form in asked_forms if form == writer.pair.low_form]
        self._writer = writer
        self._opener = opener
        self.files = TypedFolder(folder, from_root=True, shared=weights)

    def open(self, plan: Plan, opener: Opener | None = None) -> BuiltSession:
        """Open a plan.

        Raises BackendFailure: the build failed, took too long, or a low layer lies on the CPU.
        """
        opened = self._built(plan, opener)
        # Before any run: its outputs would look right, as FP32 computed them.
        if stray := self._on_cpu(plan, opened):
            raise not_honoured(stray)
        table = self._model.table
        return BuiltSession(
            opened=opened,
            layers=frozenset(layer.name for layer in table.layers),
            kept=[*self._asked_high, *(table.names[index] for index in plan.indices)],
            low=self._low(plan),
            high=self._writer.pair.high,
            rebatched=partial(self._built, plan, opener),
        )

    def _built(self, plan: Plan, opener: Opener | None, batch: int | None = None) -> Opened:
        with opening_failures():
            return self._open(plan, opener, batch)

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that ONNX Runtime cannot run low, each with the reason.

        The graph with every layer low is opened. If ONNX Runtime names layers that it cannot take,
        it is opened again with these kept, until it opens. An error that names no layer is left
        for the trials to report.
        """
        stuck: dict[LayerName, str] = {}
        for _ in range(_MOST_ROUNDS):
            reasons = self._stumbles(stuck)
            # A layer that was asked for low stays so: the trials report it.
            reasons = {name: why for name, why in reasons.items() if name not in self._asked_low}
            if not reasons:
                break
            stuck |= reasons
        # The process waits for its first trial, while another one may compute.
        trim()
        return stuck

    def _open(self, plan: Plan, opener: Opener | None = None, batch: int | None = None) -> Opened:
        typed = self._writer.write(plan, guard_islands=False, seal=True)
        if batch is not None:
            typed = replace(typed, proto=rebatched(typed.proto, batch))
        with self.files.saved(typed) as file:
            return replace(opener or self._opener, data=self.files.root).open(file)

    def _low(self, plan: Plan) -> Sequence[LayerName]:
        """Return the layers that run low: those asked for, then the plan's in network order."""
        return [
            *self._asked_low,
            *(
                name
                for index, name in enumerate(self._model.table.names)
                if index not in plan.kept and name not in self._writer.not_low
            ),
        ]

    def _on_cpu(self, plan: Plan, opened: Opened) -> Sequence[LayerName]:
        """Return the low layers on the CPU, also those that were replaced by their bodies."""
        placed = placement(opened.session)
        low = self._low(plan)
        there = {name for name in low if CPU in placed.get(name, ())}
        # A body's nodes have no names: any low layer that has vanished may be the one.
        if CPU in placed.get(_UNNAMED, ()):
            there |= {name for name in low if name not in placed and self._has_body(name)}
        return [name for name in low if name in there]

    def _has_body(self, name: LayerName) -> bool:
        """Return whether the ONNX standard defines the layer's operator by other operators."""
        layer = self._layers[name]
        return has_function(layer.op_type, opset(self._model.proto, layer.domain), layer.domain)

    def _stumbles(self, stuck: Collection[LayerName]) -> dict[LayerName, str]:
        """Return the layers that prevent a session in which all but `stuck` run low."""
        names = self._model.table.names
        plan = Plan.of(i for i, name in enumerate(names) if name in stuck)
        try:
            opened = self._open(plan)
        except OpeningError as error:
            about = self._named(str(error), plan) or self._behind_unnamed(str(error), plan)
            return dict.fromkeys(about, f"ONNX Runtime: {error}")
        except TimeoutError:
            return {}
        known = without_cuda_kernel(self._model, self._writer.pair, plan)
        return {name: known.get(name, _ON_CPU) for name in self._on_cpu(plan, opened)}

    def _named(self, error: str, plan: Plan) -> Sequence[LayerName]:
        """Return the low layers that an error is about."""
        low = self._low(plan)
        named = [
            name
            for name in low
            # The forms in which ONNX Runtime's errors name a node.
            if any(form in error for form in (f"'{name}'", f"({name})", f"(node {name})"))
        ]
        if not any(part in error for part in _ABOUT_OPERATORS):
            return named
        about = {self._layers[name].op_type for name in named}
        return [name for name in low if self._layers[name].op_type in about]

    def _behind_unnamed(self, error: str, plan: Plan) -> Sequence[LayerName]:
        """Return the low layers with a refused node in their bodies, which the error cannot name.

        They have the operator without which the error is another one, or none.
        """
        if "name ''" not in error:
            return []
        bodies = [name for name in self._low(plan) if self._has_body(name)]
        # Sparing all of one operator tells which it is; one layer at a time would take a session
        # each.
        for op_type in dict.fromkeys(self._layers[name].op_type for name in bodies):
            alike = [name for name in bodies if self._layers[name].op_type == op_type]
            numbers = (i for i, name in enumerate(self._model.table.names) if name in alike)
            spared = Plan.of({*plan.kept, *numbers})
            try:
                self._open(spared)
            except OpeningError as other:
                if str(other) == error:
                    continue
            return alike
        return bodies


def not_honoured(stray: Sequence[LayerName]) -> BackendFailure:
    """Return the outcome of a trial whose low layers were computed on the CPU, in FP32."""
    first, *others = stray
    more = f" (and {len(others)} more)" if others else ""
    return failure(TrialStatus.NOT_HONOURED, f"{first!r}{more} does not run low: {_ON_CPU}")
