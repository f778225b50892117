"""Neighbours of layers that must stay: how likely they must stay, too.

A tensor beyond a type's range spoils the layer that writes it and those that read it, so layers
that must stay for an overflow seldom come alone. How long their runs are, in network order, is
told by what the emulator chooses, which costs no build, and more so by those that were found where
it chose none.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

LIKELY = 0.3
"""A neighbour that must stay with a smaller chance is like any other layer."""
BELIEVED = 1.0
"""What the emulator's runs say counts as so many that were found."""


@dataclass(slots=True)
class Runs:
    """How many runs reached a length, and how many of these went on."""

    reached: Counter[int] = field(default_factory=Counter)
    longer: Counter[int] = field(default_factory=Counter)

    def note(self, length: int, *, ended: bool) -> None:
        """Note a run; `ended` tells that it is known to be no longer."""
        self.reached.update(range(1, length + ended))
        self.longer.update(range(1, length))

    def share(self, length: int) -> float:
        """Return the share of runs of this length that went on, less where few are known."""
        return self.longer[length] / (self.reached[length] + 1)

    def chance(self, length: int, expected: float) -> float:
        """Return the chance that a run of this length goes on, `expected` where none are known."""
        return (self.longer[length] + BELIEVED * expected) / (self.reached[length] + BELIEVED)


def beside(
    kept: Collection[int], undecided: Collection[int], chosen: Collection[int]
) -> dict[int, float]:
    """Return the undecided layers beside kept ones that likely must stay, and their chances.

    `kept` are layers that were found to be needed, `chosen` those that the emulator keeps.
    """
    foreseen, found = Runs(), Runs()
    for first, last in _runs(chosen):
        foreseen.note(last - first + 1, ended=True)
    open_ends = []
    for first, last in _runs(kept):
        ends = [layer for layer in (first - 1, last + 1) if layer in undecided]
        if not any(layer in chosen for layer in range(first, last + 1)):
            found.note(last - first + 1, ended=not ends)
        open_ends.append((last - first + 1, ends))
    others: dict[int, float] = {}
    for length, ends in open_ends:
        chance = found.chance(length, foreseen.share(length))
        for layer in ends:
            others[layer] = others.get(layer, 1.0) * (1 - chance / len(ends))
    return {layer: 1 - other for layer, other in others.items() if 1 - other >= LIKELY}


def _runs(layers: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last layer of each run of neighbours."""
    found: list[tuple[int, int]] = []
    for layer in sorted(layers):
        if found and found[-1][1] == layer - 1:
            found[-1] = found[-1][0], layer
        else:
            found.append((layer, layer))
    return found
