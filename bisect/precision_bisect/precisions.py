"""Types by name: the pair of a search, the ladder, and the forms that layers compute in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, cast, get_args

from precision_bisect.errors import UsageError

HalfName: TypeAlias = Literal["fp16", "bf16"]
QuantizedName: TypeAlias = Literal["int8", "fp8"]
LowName: TypeAlias = Literal["fp16", "bf16", "int8", "fp8"]
HighName: TypeAlias = Literal["fp32", "bf16", "fp16"]
PrecisionName: TypeAlias = Literal["fp32", "bf16", "fp16", "int8", "fp8"]
HALF_NAMES: tuple[HalfName, ...] = get_args(HalfName)
QUANTIZED_NAMES: tuple[QuantizedName, ...] = get_args(QuantizedName)
LOW_NAMES: tuple[LowName, ...] = get_args(LowName)
HIGH_NAMES: tuple[HighName, ...] = get_args(HighName)
_NAMES: Mapping[str, PrecisionName] = {name: name for name in get_args(PrecisionName)}
# What others call the types.
_OTHER_NAMES: Mapping[str, PrecisionName] = {
    **dict.fromkeys(("half", "float16", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16",), "bf16"),
    **dict.fromkeys(("single", "float", "float32", "f32"), "fp32"),
}


def type_name(text: str) -> str:
    """Return a type by the name that it has here; other texts as they are."""
    return _OTHER_NAMES.get(text.lower(), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a layer computes.

    It stores its outputs in the float type `stored`, and reads its operands in it, too, unless
    they are `quantized` to an 8-bit type.
    """

    stored: HighName
    quantized: QuantizedName | None = None

    @property
    def precision(self) -> PrecisionName:
        """The type by which the layer is called."""
        return self.quantized or self.stored


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
    wanted = [type_name(name.strip()).lower() for name in text.split(",")]
    ladder = tuple(_NAMES.get(name, cast("PrecisionName", name)) for name in wanted)
    pairs_of(ladder)
    return ladder


def pairs_of(ladder: Sequence[PrecisionName]) -> tuple[Pair, ...]:
    """Return the pairs of neighbours of a ladder, lowest first. Raises UsageError."""
    text = ",".join(map(str, ladder))
    for name in ladder:
        if name not in _NAMES.values():
            what = f"--ladder {text}: {name!r} is no type"
            raise UsageError(what, f"types are {', '.join(_NAMES)}")
    if len(ladder) < 2 or len(set(ladder)) < len(ladder):
        raise UsageError(
            f"--ladder {text} does not name at least two different types",
            "name them from the lowest to the highest, such as int8,fp16,fp32",
        )
    pairs = []
    for low, high in pairwise(ladder):
        # Nothing is above FP32, and from one 8-bit type to the other is no step in precision.
        if low == "fp32" or high == "int8" or high == "fp8":
            raise UsageError(
                f"--ladder {text}: {high} is no step up from {low}",
                "name int8 or fp8 first and fp32 last, such as int8,fp16,fp32",
            )
        pairs.append(Pair(low=low, high=high))
    return tuple(pairs)
