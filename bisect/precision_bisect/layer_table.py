"""Layers: the unit of search, and why some nodes of a model are none.

A layer is an ONNX node that computes floating-point values. `LayerTable` holds every node of the
main graph in network order, the candidates among them, and for the others the reason why a search
leaves them alone. Strategies and plans speak of a candidate by its *index*: its place among the
candidates in network order, 0-based.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from precision_bisect.options import HighName, PrecisionName, QuantizedName

LayerName = NewType("LayerName", str)

SETTLED = "settled by another rung of the ladder"
"""Why a rung of a ladder does not decide on a layer that it could decide on."""


class Exclusion(StrEnum):
    """Why a node is no candidate."""

    FOLLOWER = "moves values only; takes the precision of what feeds it"
    CONSTANT = "computed from constants only; builders fold it"
    SHAPE = "shape arithmetic"
    NOT_FLOAT = "its outputs are not floating point"
    ALREADY_LOW = "already computes in a lower precision"
    DOUBLE = "computes in double precision"
    CAST = "a cast: its type is its meaning"
    QUANTIZATION = "quantization: its type is its meaning"
    CONTROL_FLOW = "contains subgraphs; stays high as one unit"
    RANDOM = "draws random numbers"
    CUSTOM = "not a standard ONNX operator; stays high"
    NOT_TENSOR = "its output is no tensor"
    UNTYPED = "its output type could not be inferred; stays high"
    PINNED = "cannot run in the low type; stays high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a layer computes.

    It stores its outputs in the float type `stored`, and reads its operands in it, too, unless
    they are `quantized` to an 8-bit type.
    """

    stored: "HighName"
    quantized: "QuantizedName | None" = None

    @property
    def precision(self) -> "PrecisionName":
        """The type by which the layer is called."""
        return self.quantized or self.stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One node of the main graph.

    `name` is unique in the model; `named_in_model` tells whether the file itself carries this name
    exactly once, which exports that address layers by name depend on. `detail` says more about
    the exclusion. `fixed` is the form of a pinned layer that does not compute in the high type,
    such as one that an earlier rung of a ladder has settled. `inside` counts the FP32 layers in
    the node's subgraphs.
    """

    name: LayerName
    op_type: str
    domain: str
    outputs: tuple[str, ...]
    named_in_model: bool
    exclusion: Exclusion | None
    detail: str = ""
    fixed: Form | None = None
    inside: int = 0

    @property
    def module(self) -> str:
        """The name scope of the layer, or "" at the top: `/enc/0/norm/Pow` gives `/enc/0/norm`."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class LayerTable:
    """All nodes of the main graph in network order."""

    layers: Sequence[Layer]

    @cached_property
    def candidates(self) -> tuple[Layer, ...]:
        """The layers that a search decides on, in network order; a plan's indices point here."""
        return tuple(layer for layer in self.layers if layer.exclusion is None)

    @property
    def names(self) -> tuple[LayerName, ...]:
        """Names of the candidates, in network order."""
        return tuple(layer.name for layer in self.candidates)

    def pinned(self, reasons: Mapping[LayerName, str], fixed: Form | None = None) -> "LayerTable":
        """Return the table with these layers no candidates any more, each for its reason.

        They stay in the high type, or in the form that they are `fixed` to.
        """
        return LayerTable(
            tuple(
                replace(layer, exclusion=Exclusion.PINNED, detail=reasons[layer.name], fixed=fixed)
                if layer.exclusion is None and layer.name in reasons
                else layer
                for layer in self.layers
            )
        )
