"""What a matcher finds: one operator that was exported as several."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from precision_bisect.layer_table import LayerName, scope_of

Kind: TypeAlias = Literal[
    "LayerNormalization", "RMSNormalization", "GroupNormalization", "Softmax", "Gelu"
]

SINCE: dict[Kind, int] = {
    "LayerNormalization": 17,
    "RMSNormalization": 23,
    "GroupNormalization": 21,
    "Softmax": 13,
    "Gelu": 20,
}
"""The opset from which on each operator means what it is written for here.

Opset 18 has a GroupNormalization, too, but with a scale per group. Softmax before 13 flattens its
input.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """One operator in pieces: from the tensor `source` to `output`, by the nodes `members`.

    `axes` are those it works along, counted from the last, -1, of `rank` in all, 0 if that is not
    known. `size` has the sizes along them, None if one is not known. `scale` and `bias` name
    constants, "" for none. `groups` is for GroupNormalization, `approximate` for Gelu. `squares`
    is the tensor that holds squares, "" for none, and `centred` the tensor that is squared.
    `members` are in network order.
    """

    kind: Kind
    source: str
    output: str
    members: tuple[LayerName, ...]
    axes: tuple[int, ...] = ()
    rank: int = 0
    size: tuple[int, ...] | None = None
    epsilon: float = 0.0
    epsilon_name: str = ""
    scale: str = ""
    bias: str = ""
    groups: int = 0
    approximate: str = "none"
    squares: str = ""
    centred: str = ""

    @property
    def module(self) -> str:
        """The name scope of the last node."""
        return scope_of(self.members[-1])
