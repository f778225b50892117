"""A pair of precisions, and the form in which each layer computes under it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from precision_bisect.errors import UsageError
from precision_bisect.layer_table import Exclusion, Form, LayerName, LayerTable
from precision_bisect.options import HIGH_NAMES, LOW_NAMES, HighName, LowName, PrecisionName
from precision_bisect.plan import Plan

_NAMES: Mapping[str, PrecisionName] = {name: name for name in get_args(PrecisionName)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The types of the layers that run low and of those that are kept.

    Raises UsageError for types that make no pair.
    """

    low: LowName
    high: HighName

    def __post_init__(self) -> None:
        for flag, name, allowed in (
            ("--low", self.low, LOW_NAMES),
            ("--high", self.high, HIGH_NAMES),
        ):
            if name not in allowed:
                raise UsageError(
                    f"{flag} cannot be {name!r}", f"choose one of {', '.join(allowed)}"
                )
        if self.low == self.high:
            raise UsageError(f"--low and --high are both {self.low}", "choose two different types")

    @property
    def low_form(self) -> Form:
        """The form of a layer that runs low: an 8-bit one stores its outputs in the high type."""
        if self.low == "int8" or self.low == "fp8":
            return Form(stored=self.high, quantized=self.low)
        return Form(stored=self.low)

    @property
    def high_form(self) -> Form:
        """The form of a layer that is kept."""
        return Form(stored=self.high)


def parse_ladder(text: str) -> tuple[PrecisionName, ...]:
    """Return the types that `int8,fp16,fp32` names, lowest first. Raises UsageError."""
    wanted = [name.strip().lower() for name in text.split(",")]
    for name in wanted:
        if name not in _NAMES:
            raise UsageError(
                f"--ladder {text}: {name!r} is no type", f"types are {', '.join(_NAMES)}"
            )
    ladder = tuple(_NAMES[name] for name in wanted)
    pairs_of(ladder)
    return ladder


def pairs_of(ladder: Sequence[PrecisionName]) -> tuple[Pair, ...]:
    """Return the pairs of neighbours of a ladder, lowest first. Raises UsageError."""
    text = ",".join(ladder)
    if len(ladder) < 2 or len(set(ladder)) < len(ladder):
        raise UsageError(
            f"--ladder {text} does not name at least two different types",
            "name them from the lowest to the highest, such as int8,fp16,fp32",
        )
    pairs = []
    for low, high in pairwise(ladder):
        if low == "fp32" or high == "int8" or high == "fp8":
            raise UsageError(
                f"--ladder {text}: {high} is no step up from {low}",
                "name int8 or fp8 first and fp32 last, such as int8,fp16,fp32",
            )
        pairs.append(Pair(low=low, high=high))
    return tuple(pairs)


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
    """Return the forms of candidates and of pinned layers, by name, in network order.

    The other layers have none: they pass values on as they are, or compute in FP32.
    """
    forms = {}
    for layer in table.layers:
        if layer.exclusion is None:
            forms[layer.name] = LayerForms(low=pair.low_form, high=pair.high_form)
        elif layer.exclusion is Exclusion.PINNED:
            form = layer.fixed or pair.high_form
            forms[layer.name] = LayerForms(low=form, high=form)
    return forms


def rounded_to(table: LayerTable, pair: Pair) -> list[PrecisionName]:
    """Return every type but FP32 that the pair and the pinned layers take, each once."""
    every = {pair.low_form, pair.high_form}.union(
        *(forms.all for forms in forms_of(table, pair).values())
    )
    names = {name for form in every for name in (form.stored, form.quantized) if name}
    return sorted(names - {"fp32"})


def assigned(table: LayerTable, pair: Pair, plan: Plan) -> Mapping[LayerName, PrecisionName]:
    """Return the precision of candidates and pinned layers under a plan, in network order."""
    kept = {table.names[i] for i in plan.kept}
    return {
        name: (forms.high if name in kept else forms.low).precision
        for name, forms in forms_of(table, pair).items()
    }
