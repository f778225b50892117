"""Neighbours of layers that must stay: how likely they must stay, too.

A tensor beyond a type's range spoils the layer that writes it and those that read it, so layers
that must stay for an overflow seldom come alone. How long their runs are, in network order, is
told by what the emulator chooses, which costs no build, and by those that were found.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

LIKELY = 0.25
"""A neighbour that must stay with a smaller chance is like any other layer."""


@dataclass(slots=True)
class Runs:
    """How many runs reached a length, and how many of these went on."""

    reached: Counter[int] = field(default_factory=Counter)
    longer: Counter[int] = field(default_factory=Counter)

    def note(self, length: int, *, ended: bool) -> None:
        """Note a run; `ended` tells that it is known to be no longer."""
        self.reached.update(range(1, length + ended))
        self.longer.update(range(1, length))

    def chance(self, length: int) -> float:
        """Return the chance that a run of this length goes on; 0 where nothing is known."""
        return self.longer[length] / (self.reached[length] + 1)


def beside(
    kept: Collection[int], undecided: Collection[int], chosen: Collection[int]
) -> dict[int, float]:
    """Return the undecided layers beside kept ones that likely must stay, and their chances.

    `kept` are layers that were found to be needed, `chosen` those that the emulator keeps.
    """
    runs = Runs()
    for first, last in _runs(chosen):
        runs.note(last - first + 1, ended=True)
    open_ends = []
    for first, last in _runs(kept):
        ends = [layer for layer in (first - 1, last + 1) if layer in undecided]
        runs.note(last - first + 1, ended=not ends)
        open_ends.append((last - first + 1, ends))
    others: dict[int, float] = {}
    for length, ends in open_ends:
        for layer in ends:
            others[layer] = others.get(layer, 1.0) * (1 - runs.chance(length) / len(ends))
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
