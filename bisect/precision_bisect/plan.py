"""A plan: which candidate layers are kept high; everything else runs low."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from itertools import compress, count


@total_ordering
@dataclass(frozen=True, slots=True)
class Plan:
    """An immutable set of candidate indices (see `LayerTable`) that stay in high precision.

    Plans are totally ordered, fewer kept layers first and then network order, so that equal
    evidence always gives the same answer. The set is held as a bit mask, layer 0 in the lowest
    bit: a run remembers thousands of plans of thousands of layers.
    """

    mask: int

    @classmethod
    def of(cls, kept: Iterable[int]) -> "Plan":
        """Return the plan that keeps the given candidate indices."""
        return cls(_mask(kept))

    @classmethod
    def all_high(cls, candidates: int) -> "Plan":
        """Return the plan that keeps every one of `candidates` layers."""
        return cls((1 << candidates) - 1)

    def without(self, dropped: Iterable[int]) -> "Plan":
        """Return the plan with `dropped` no longer kept."""
        return Plan(self.mask & ~_mask(dropped))

    def with_(self, added: Iterable[int]) -> "Plan":
        """Return the plan with `added` kept, too."""
        return Plan(self.mask | _mask(added))

    @property
    def kept(self) -> frozenset[int]:
        """The kept indices."""
        return _indices(self.mask)

    @property
    def indices(self) -> tuple[int, ...]:
        """Kept indices in network order."""
        return tuple(sorted(self.kept))

    @property
    def key(self) -> str:
        """A short canonical text: the mask in hexadecimal."""
        return format(self.mask, "x")

    @classmethod
    def from_key(cls, key: str) -> "Plan":
        """Return the plan whose `key` this is. Raises ValueError for a key of none."""
        plan = cls(int(key, 16))
        if plan.mask < 0 or plan.key != key:
            raise ValueError(f"{key[:20]!r} is no plan")
        return plan

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __lt__(self, other: "Plan") -> bool:
        if len(self) != len(other):
            return len(self) < len(other)
        # Of two sets of one size the one with the lowest index that they do not share comes first.
        difference = self.mask ^ other.mask
        return bool(self.mask & difference & -difference)


_ONE = ord("1")
_BITS = bytes.maketrans(b"01", b"\0\1")


def _mask(indices: Iterable[int]) -> int:
    """Return the bit mask of indices."""
    chosen = list(indices)
    digits = bytearray(b"0") * (max(chosen, default=0) + 1)
    for i in chosen:
        digits[~i] = _ONE
    return int(digits, 2)


@lru_cache(maxsize=8)
def _indices(mask: int) -> frozenset[int]:
    """Return the indices of a bit mask; one plan is read several times in a row.

    A set of 5,000 takes over half a megabyte, so few are held.
    """
    digits = format(mask, "b")[::-1].encode().translate(_BITS)
    return frozenset(compress(count(), digits))
