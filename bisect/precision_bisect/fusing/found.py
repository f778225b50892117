"""What a matcher finds: one operator that was exported as several."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from precision_bisect.layer_table import LayerName

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
"""The opset from which each operator means what it is written here for.

GroupNormalization is one of 18, too, but scales per group there. Softmax before 13 flattens.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """One operator in pieces: from the tensor `source` to `output`, by the nodes `members`.

    `axes` are those it works along, counted from the last, -1, out of `rank`, 0 where that is not
    known; `size` has the sizes along them, None where one is not known. `scale` and `bias` name
    constants, "" for none. `groups` is for GroupNormalization. `approximate` is Gelu's. `squares`
    is the tensor that holds squares, "" for none, and `centred` what is squared in it. `members`
    are in network order.
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
        return self.members[-1].rpartition("/")[0]
