"""What a file's 16-bit floats, and those of its interface, mean for a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.precisions import HalfName
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A node that stores a 16-bit type, and the samples in which FP32 leaves its range there."""

    node: str
    samples: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp32Search:
    """A file with 16-bit floats was searched in its FP32 form, which is exact.

    The file computes `layers` in `types`. `overflowing` are its nodes that leave the range of
    these, Casts among them, in some `of_samples`.
    """

    types: Sequence[HalfName]
    layers: Sequence[str]
    overflowing: Sequence[Overflow] = ()
    of_samples: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LostValues:
    """An input or output whose finite values become 0 or infinite in the interface, by shares."""

    name: str
    zero: Figure
    infinite: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceCost:
    """What the interface costs: the trial with every layer high, samples rounded to `low`.

    `error` is None where there is no figure, `passed` None without a verdict.
    """

    low: HalfName
    error: Figure | None
    passed: bool | None
    lost: Sequence[LostValues] = ()

    @property
    def words(self) -> str:
        """What it costs, and which of them lose what, as a sentence without its end."""
        figure = "" if self.error is None else f": error {self.error:.4g}"
        parts = [f"{self.low.upper()} inputs and outputs, every layer FP32{figure}"]
        parts += [
            f"{100 * share:.2g}% of the values of {lost_input.name!r} become {what}"
            for lost_input in self.lost
            for share, what in ((lost_input.zero, "0"), (lost_input.infinite, "infinite"))
            if share
        ]
        return "; ".join(parts)
