"""Layers: the unit of search, and why some nodes of a model are none.

A layer is an ONNX node that computes floating-point values. `LayerTable` holds every node of the
main graph in network order, the candidates among them, and for the others the reason why a search
leaves them alone. Strategies and plans speak of a candidate by its *index*: its place among the
candidates in network order, 0-based.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NewType

from precision_bisect.plan import Plan
from precision_bisect.precisions import Form, Pair, PrecisionName

LayerName = NewType("LayerName", str)


class Exclusion(StrEnum):
    """Why a node is no candidate."""

    FOLLOWER = "moves values only; takes the precision of what feeds it"
    CONSTANT = "computed from constants only; builders fold it"
    SHAPE = "shape arithmetic"
    NOT_FLOAT = "its outputs are not floating point"
    DOUBLE = "computes in double precision"
    CAST = "a cast: its type is its meaning"
    QUANTIZATION = "quantization: its type is its meaning"
    CONTROL_FLOW = "contains subgraphs; stays high as one unit"
    RANDOM = "draws random numbers"
    CUSTOM = "not a standard ONNX operator; stays high"
    NOT_TENSOR = "works on texts, sequences or optional values"
    UNTYPED = "its output type could not be inferred; stays high"
    PINNED = "cannot run in the low type; stays high"
    ASKED = "its type was asked for"
    RUNG = "settled by another rung of the ladder"


SETTLED = (Exclusion.PINNED, Exclusion.RUNG)
"""Of layers that could run low or high, for which something other than the user has decided."""
ASSIGNED = (None, Exclusion.ASKED, *SETTLED)
"""Of layers that have a type of their own: by a plan, or the same in every plan."""
FIXED = (
    *(Exclusion.DOUBLE, Exclusion.CONTROL_FLOW, Exclusion.RANDOM),
    *(Exclusion.CUSTOM, Exclusion.NOT_TENSOR, Exclusion.UNTYPED),
)
"""Of what computes, or holds, floats that no plan changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One node of the main graph, or of a body inside one of its nodes.

    `name` is unique in the model; `named_in_model` tells whether the file itself carries this name
    exactly once, bodies included, which exports that address layers by name depend on. `detail`
    says more about the exclusion. `fixed` is the form of a layer that was asked for, or of a
    pinned one that does not compute in the high type: an earlier rung of a ladder may have decided
    it. `body` has the nodes of its subgraphs, at any depth. `module` is what the layer
    belongs to in the model's source: PyTorch's qualified name where the file tells it, else the
    name scope; "" at the top.
    """

    name: LayerName
    op_type: str
    domain: str
    outputs: tuple[str, ...]
    named_in_model: bool
    exclusion: Exclusion | None
    detail: str = ""
    fixed: Form | None = None
    body: tuple["Layer", ...] = ()
    module: str = ""

    @property
    def inside(self) -> int:
        """How many FP32 layers the node's subgraphs hold."""
        return sum(layer.exclusion is None for layer in self.body)


def scope_of(name: str, mark: str = "/") -> str:
    """Return what stands before the last mark: `/enc/0/norm` of `/enc/0/norm/Pow`."""
    return name.rpartition(mark)[0]


def with_module(layer: str, module: str) -> str:
    """Return a layer's name, with its module where the name does not tell it: `node_add_12`."""
    return layer if not module or scope_of(layer) else f"{layer} ({module})"


def modules_around(module: str) -> list[str]:
    """Return a module and all around it, the outermost first: `enc`, `enc.0`, `enc.0.norm`.

    Name scopes are cut at `/` alone: `/enc.0`, `/enc.0/norm`.
    """
    mark = "/" if "/" in module else r"\."
    ends = [*(match.start() for match in re.finditer(mark, module)), len(module)]
    return [module[:end] for end in ends if module[:end].strip("/")]


@dataclass(frozen=True)
class LayerTable:
    """All nodes of the main graph in network order."""

    layers: Sequence[Layer]

    @cached_property
    def with_bodies(self) -> tuple[Layer, ...]:
        """All nodes in network order, each followed by those in its subgraphs."""
        return tuple(inner for layer in self.layers for inner in (layer, *layer.body))

    @cached_property
    def candidates(self) -> tuple[Layer, ...]:
        """The layers that a search decides on, in network order; a plan's indices point here."""
        return tuple(layer for layer in self.layers if layer.exclusion is None)

    @cached_property
    def names(self) -> tuple[LayerName, ...]:
        """Names of the candidates, in network order."""
        return tuple(layer.name for layer in self.candidates)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the candidates, in network order; nothing where none has one."""
        modules = tuple(layer.module for layer in self.candidates)
        return modules if any(modules) else ()

    def plan_of(self, names: Iterable[str]) -> Plan:
        """Return the plan that keeps the candidates with these names."""
        kept = frozenset(names)
        return Plan.of(i for i, layer in enumerate(self.candidates) if layer.name in kept)

    def pinned(self, reasons: Mapping[LayerName, str], fixed: Form | None = None) -> "LayerTable":
        """Return the table with these layers no candidates any more, each for its reason.

        They stay in the high type, or in the form that they are `fixed` to.
        """
        return self._decided(
            reasons,
            lambda layer: replace(
                layer, exclusion=Exclusion.PINNED, detail=reasons[layer.name], fixed=fixed
            ),
        )

    def on_rung(self, names: Collection[LayerName], form: Form) -> "LayerTable":
        """Return the table with these layers settled to a form by another rung of a ladder."""
        return self._decided(
            names, lambda layer: replace(layer, exclusion=Exclusion.RUNG, fixed=form)
        )

    @property
    def asked(self) -> Mapping[LayerName, Form]:
        """The layers whose form was asked for, in network order."""
        return {
            layer.name: layer.fixed
            for layer in self.layers
            if layer.exclusion is Exclusion.ASKED and layer.fixed is not None
        }

    def asking(self, forms: Mapping[LayerName, Form]) -> "LayerTable":
        """Return the table with these layers no candidates any more: each has its form."""

        def ask(layer: Layer) -> Layer:
            form = forms[layer.name]
            detail = form.precision.upper()
            return replace(layer, exclusion=Exclusion.ASKED, detail=detail, fixed=form)

        return self._decided(forms, ask)

    def _decided(
        self, names: Collection[LayerName], decide: Callable[[Layer], Layer]
    ) -> "LayerTable":
        """Return the table with those of its candidates that have these names decided."""
        return LayerTable(
            tuple(
                decide(layer) if layer.exclusion is None and layer.name in names else layer
                for layer in self.layers
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerForms:
    """The forms of one layer: what it computes in when it runs low, and when it is kept.

    A layer that no plan decides on has twice the same.
    """

    low: Form
    high: Form

    @property
    def all(self) -> frozenset[Form]:
        """Every form that the layer may take."""
        return frozenset((self.low, self.high))


def forms_of(table: LayerTable, pair: Pair) -> Mapping[LayerName, LayerForms]:
    """Return the forms of the layers that have a type of their own, by name, in network order.

    The other layers have none: they pass values on as they are, or compute in FP32.
    """
    decided = LayerForms(low=pair.low_form, high=pair.high_form)
    forms = {}
    for layer in table.layers:
        if layer.exclusion is None:
            forms[layer.name] = decided
        elif layer.exclusion in ASSIGNED:
            form = layer.fixed or decided.high
            forms[layer.name] = LayerForms(low=form, high=form)
    return forms


def rounded_to(table: LayerTable, pair: Pair) -> list[PrecisionName]:
    """Return every type but FP32 that the pair and the layers without a choice take, each once."""
    every = {pair.low_form, pair.high_form}.union(
        *(forms.all for forms in forms_of(table, pair).values())
    )
    names = {name for form in every for name in (form.stored, form.quantized) if name}
    return sorted(names - {"fp32"})


def assigned(table: LayerTable, pair: Pair, plan: Plan) -> Mapping[LayerName, PrecisionName]:
    """Return the precision under a plan of layers with a type of their own, in network order."""
    kept = {table.names[i] for i in plan.kept}
    return {
        name: (forms.high if name in kept else forms.low).precision
        for name, forms in forms_of(table, pair).items()
    }
