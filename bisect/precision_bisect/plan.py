"""A plan: which candidate layers are kept high; everything else runs low."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering


@total_ordering
@dataclass(frozen=True, slots=True)
class Plan:
    """An immutable set of candidate indices (see `LayerTable`) that stay in high precision.

    Plans are totally ordered, fewer kept layers first and then network order, so that equal
    evidence always gives the same answer.
    """

    kept: frozenset[int]

    @classmethod
    def of(cls, kept: Iterable[int]) -> "Plan":
        """Return the plan that keeps the given candidate indices."""
        return cls(frozenset(kept))

    @classmethod
    def all_high(cls, candidates: int) -> "Plan":
        """Return the plan that keeps every one of `candidates` layers."""
        return cls(frozenset(range(candidates)))

    def without(self, dropped: Iterable[int]) -> "Plan":
        """Return the plan with `dropped` no longer kept."""
        return Plan(self.kept.difference(dropped))

    @property
    def indices(self) -> tuple[int, ...]:
        """Kept indices in network order."""
        return tuple(sorted(self.kept))

    @property
    def key(self) -> str:
        """A short canonical text: the set's bit mask in hexadecimal."""
        return format(sum(1 << i for i in self.kept), "x")

    @classmethod
    def from_key(cls, key: str) -> "Plan":
        """Return the plan whose `key` this is."""
        mask = int(key, 16)
        return cls(frozenset(i for i in range(mask.bit_length()) if mask >> i & 1))

    def __len__(self) -> int:
        return len(self.kept)

    def __lt__(self, other: "Plan") -> bool:
        return (len(self.kept), self.indices) < (len(other.kept), other.indices)
