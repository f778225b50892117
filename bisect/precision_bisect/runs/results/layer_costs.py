"""What the kept layers of an answer cost, measured kernel by kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from precision_bisect.errors import counted, first_of
from precision_bisect.layer_table import modules_around
from precision_bisect.trial import Figure

ProfileMethod: TypeAlias = Literal["onnxruntime_profile", "tensorrt_profiler"]
MATTERS = 0.05
"""Share of the latency that kept layers must cost to be profiled, or told on screen: less is
within the spread of timing, 3 to 9% (`benchmarks/results/latency_clocks.json`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """What a kept layer takes in the answer, and with every layer low, in milliseconds.

    A kernel that computes several layers counts in equal parts.
    """

    layer: str
    ms: Figure
    low_ms: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandCost:
    """Kept layers that depend on each other for their time, in network order.

    They exchange values, or one kernel computes them. `ms` is what they take in the answer,
    `casts_ms` what the Casts around them do; of a Cast between two islands each has its part.
    `saves_ms` is how much faster the answer would be with all of them low: with their Casts and
    the fusions that they prevent, but for what they take when low.
    """

    layers: Sequence[str]
    ms: Figure
    casts_ms: Figure
    saves_ms: Figure

    def name(self, module_of: Callable[[str], str]) -> str:
        """Return the island in a few words: its layer, their common module, or the first one."""
        first, *others = self.layers
        if not others:
            return first
        around = [modules_around(module_of(layer)) for layer in self.layers]
        shared = [module for module in around[0] if all(module in other for other in around)]
        return (
            f"{shared[-1]} ({counted(len(self.layers), 'layer')})"
            if shared
            else first_of(self.layers)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The time of an answer by kept layers and islands; `left_out` says why there is none.

    `total_ms` is the sum over all kernels of the answer, `low_ms` with every layer low, and
    `other_ms` what of the total no node of the graph accounts for. All times are scaled so that
    the total is the answer's latency, where that was measured; `profiled_ms` is the total before
    that. Islands are in the order of what they save.
    """

    method: ProfileMethod | None = None
    left_out: str = ""
    total_ms: Figure | None = None
    low_ms: Figure | None = None
    other_ms: Figure | None = None
    profiled_ms: Figure | None = None
    layers: Sequence[LayerCost] = ()
    islands: Sequence[IslandCost] = ()

    @property
    def cost_ms(self) -> float:
        """What the islands cost together: what those save that save something."""
        return sum(max(island.saves_ms, 0.0) for island in self.islands)

    @property
    def matter(self) -> bool:
        """Whether the islands cost enough to be told first."""
        return self.cost_ms > 0 and self.cost_ms >= MATTERS * (self.total_ms or 0.0)

    @property
    def dearest(self) -> Sequence[IslandCost]:
        """The fewest islands that make up half of the cost."""
        islands, remainder = [], self.cost_ms / 2
        for island in self.islands:
            if remainder <= 0:
                break
            islands.append(island)
            remainder -= island.saves_ms
        return islands
