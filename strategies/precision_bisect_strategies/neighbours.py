"""Neighbours of layers that must stay: how likely they must stay, too.

A tensor beyond a type's range spoils the layer that writes it and those that read it. So layers
that must stay for an overflow seldom come alone. How long such runs are, in network order, is
estimated from what the emulator chooses, which costs no build. Runs that builds found where the
emulator chose none count more.

Without this module NAFNet took 91, 62 and 32 builds at three tolerances instead of 72, 50 and 25
(measured with the emulator as the engine).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

LIKELY = 0.3
"""Chance to stay below which a neighbour is treated as any other layer. Half and double change no
more than chance does in benchmarks/constants.py."""


@dataclass(slots=True)
class Runs:
    """The number of runs that reached each length, and of those that went on."""

    reached: Counter[int] = field(default_factory=Counter)
    longer: Counter[int] = field(default_factory=Counter)

    def note(self, length: int, *, ended: bool) -> None:
        """Note a run; `ended` tells that it is known to be no longer."""
        self.reached.update(range(1, length + ended))
        self.longer.update(range(1, length))

    def share(self, length: int) -> float:
        """Return the share of runs of this length that went on, smaller where few are known."""
        # One more than reached: a single run that went on must not give certainty.
        return self.longer[length] / (self.reached[length] + 1)

    def chance(self, length: int, expected: float) -> float:
        """Return the chance that a run of this length goes on, `expected` where none are known.

        What is expected weighs as much as one run.
        """
        return (self.longer[length] + expected) / (self.reached[length] + 1)


def beside(
    kept: Collection[int], undecided: Collection[int], chosen: Collection[int]
) -> dict[int, float]:
    """Return the undecided layers beside kept ones that likely must stay, and the chance of each.

    `kept` are layers that were found to be needed, `chosen` those that the emulator keeps.
    """
    foreseen, actual = Runs(), Runs()
    for first, last in _runs(chosen):
        foreseen.note(last - first + 1, ended=True)
    open_ends = []
    for first, last in _runs(kept):
        ends = [layer for layer in (first - 1, last + 1) if layer in undecided]
        if not any(layer in chosen for layer in range(first, last + 1)):
            # What the emulator foresaw is in `foreseen`; counted here it would confirm itself.
            actual.note(last - first + 1, ended=not ends)
        open_ends.append((last - first + 1, ends))
    others: dict[int, float] = {}
    for length, ends in open_ends:
        chance = actual.chance(length, foreseen.share(length))
        for layer in ends:
            # A run goes on at one of its ends, either with the same chance; two runs may share a
            # neighbour.
            others[layer] = others.get(layer, 1.0) * (1 - chance / len(ends))
    return {layer: 1 - other for layer, other in others.items() if 1 - other >= LIKELY}


def _runs(layers: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last layer of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][1] == layer - 1:
            runs[-1] = runs[-1][0], layer
        else:
            runs.append((layer, layer))
    return runs
