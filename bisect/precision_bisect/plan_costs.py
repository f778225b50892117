"""What keeping layers high costs, as far as a graph tells without an engine.

A kept layer costs the time that it takes longer in the high type, and wherever a value goes from
one type to the other a Cast reads and writes it once more. Only the order of such costs is relied
on: which plan is faster is measured. Pure data; `speed.costs` makes it from a model.

There is one scale: how many times as fast a plan is as the one with every layer high, measured
in turns with it (`stopwatch`). A limit in milliseconds is the speed-up that it takes from the
all-high latency of the preflight, so a clock that drifted since decides nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from precision_bisect.errors import UsageError
from precision_bisect.trial import Latency

# What keeping a layer costs at least, so that of two that cost nothing the fewer are chosen.
_LEAST_MS = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor on its way from the layer that computes it to those that read it.

    `producer` is a candidate's index, None for what is always high, or always low if `made_low`,
    as an input of 16 bits. `readers` are candidates, reached directly or through operators that
    only move values; `read_high` tells whether something that is always high reads it, too, such
    as a graph output, `read_low` the same of one of 16 bits. `cast_ms` is what a Cast of it costs.
    """

    producer: int | None
    readers: tuple[int, ...]
    read_high: bool
    cast_ms: float
    made_low: bool = False
    read_low: bool = False

    def is_cast(self, kept: set[int] | frozenset[int]) -> bool:
        """Tell whether a plan that keeps these layers casts it: its two ends differ in type."""
        if not self.made_low if self.producer is None else self.producer in kept:
            return self.read_low or not kept.issuperset(self.readers)
        return self.read_high or not kept.isdisjoint(self.readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Candidates that one kernel computes where all of them have one type.

    It takes `low_ms` less than their own kernels do where all run low, `high_ms` less where all
    are high.
    """

    layers: tuple[int, ...]
    low_ms: float
    high_ms: float

    def cost(self, kept: Collection[int]) -> float:
        """Return what a plan that keeps these layers costs more than every layer low."""
        high = sum(layer in kept for layer in self.layers)
        if not high:
            return 0.0
        return self.low_ms - (self.high_ms if high == len(self.layers) else 0.0)


@dataclass(frozen=True)
class CostGraph:
    """The candidates, what keeping each costs in estimated milliseconds, and what connects them.

    `high_ms` has one figure per candidate, in network order, below zero where the low type is
    slower. `base_ms` is the time with every candidate low.
    """

    high_ms: Sequence[float]
    values: Sequence[Value]
    fusions: Sequence[Fusion] = ()
    base_ms: float = 0.0

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.high_ms)

    @cached_property
    def around(self) -> tuple[tuple[int, ...], ...]:
        """For each candidate the places in `values` that it writes or reads."""
        places: list[list[int]] = [[] for _ in self.high_ms]
        for place, value in enumerate(self.values):
            ends = {*value.readers, *(() if value.producer is None else (value.producer,))}
            for layer in sorted(ends):
                places[layer].append(place)
        return tuple(map(tuple, places))

    @cached_property
    def fusions_of(self) -> Mapping[int, Sequence[Fusion]]:
        """The fusions that each candidate is a piece of, if any."""
        pieces: dict[int, list[Fusion]] = {}
        for fusion in self.fusions:
            for layer in fusion.layers:
                pieces.setdefault(layer, []).append(fusion)
        return pieces

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each candidate those that it exchanges a value with, in network order."""
        neighbour_sets = []
        for layer, places in enumerate(self.around):
            ends: set[int] = set()
            for place in places:
                value = self.values[place]
                if value.producer == layer:
                    ends.update(value.readers)
                elif value.producer is not None:
                    ends.add(value.producer)
            neighbour_sets.append(tuple(sorted(ends - {layer})))
        return tuple(neighbour_sets)

    @property
    def alone_ms(self) -> tuple[float, ...]:
        """For each candidate the cost of keeping it alone, its Casts included; never free."""
        nothing: frozenset[int] = frozenset()
        return tuple(
            max(-self.gain(nothing, nothing | {layer}), _LEAST_MS) for layer in range(self.size)
        )

    def cost(self, kept: Collection[int]) -> float:
        """Return the estimated cost of keeping exactly these layers, in milliseconds."""
        kept_layers = frozenset(kept)
        casts = sum(value.cast_ms for value in self.values if value.is_cast(kept_layers))
        broken = sum(fusion.cost(kept_layers) for fusion in self.fusions)
        return sum(self.high_ms[layer] for layer in sorted(kept_layers)) + casts + broken

    def time(self, kept: Collection[int]) -> float:
        """Return the estimated time with exactly these layers kept, in milliseconds."""
        return self.base_ms + self.cost(kept)

    def gain(self, kept: frozenset[int], instead: frozenset[int]) -> float:
        """Return by how much keeping `instead` costs less than keeping `kept`.

        The same as the difference of `cost`, at the price of what differs.
        """
        changed = sorted(kept ^ instead)
        places = sorted({place for layer in changed for place in self.around[layer]})
        layers = sum(self.high_ms[i] if i in kept else -self.high_ms[i] for i in changed)
        casts = sum(
            self.values[place].cast_ms
            * (self.values[place].is_cast(kept) - self.values[place].is_cast(instead))
            for place in places
        )
        fusions = {fusion for layer in changed for fusion in self.fusions_of.get(layer, ())}
        broken = sorted(fusion.cost(kept) - fusion.cost(instead) for fusion in fusions)
        return layers + casts + sum(broken)

    def clusters(self, layers: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the connected parts of a set of layers, each in network order."""
        remaining = set(layers)
        parts = []
        for first in sorted(remaining):
            if first not in remaining:
                continue
            remaining.discard(first)
            part, waiting = [first], [first]
            while waiting:
                near = [n for n in self.neighbours[waiting.pop()] if n in remaining]
                remaining.difference_update(near)
                part += near
                waiting += near
            parts.append(tuple(sorted(part)))
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimits:
    """The most milliseconds one inference may take, and the least speed-up over all-high.

    None for a limit that was not given. Raises UsageError for one that cannot hold.
    """

    max_latency_ms: float | None = None
    min_speedup: float | None = None

    def __post_init__(self) -> None:
        for flag, value in (
            ("--max-latency", self.max_latency_ms),
            ("--min-speedup", self.min_speedup),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(
                    f"{flag} {value:g} is not a figure above zero", "give one, or none"
                )

    @property
    def given(self) -> bool:
        """Whether any limit was given."""
        return self.max_latency_ms is not None or self.min_speedup is not None

    def needed(self, all_high_ms: float) -> float:
        """Return the speed-up over all-high that satisfies every limit."""
        from_latency = 0.0 if self.max_latency_ms is None else all_high_ms / self.max_latency_ms
        return max(from_latency, self.min_speedup or 0.0)

    def __str__(self) -> str:
        texts = []
        if self.max_latency_ms is not None:
            texts.append(f"at most {self.max_latency_ms:g} ms")
        if self.min_speedup is not None:
            texts.append(f"at least {self.min_speedup:g} times as fast as all high")
        return ", ".join(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many times as fast as all-high a plan is, and the spread of that figure."""

    speedup: float
    spread: float

    @classmethod
    def of(cls, latency: Latency | None, all_high_ms: float) -> "Pace | None":
        """Return the pace of a measured latency; None where nothing was measured.

        A latency that was measured alone is set against the all-high latency of the preflight.
        """
        if latency is None or not latency.median_ms > 0:
            return None
        if latency.speedup is not None:
            return cls(speedup=latency.speedup, spread=latency.speedup_spread or 0.0)
        speedup = all_high_ms / latency.median_ms
        return cls(speedup=speedup, spread=speedup * latency.spread_ms / latency.median_ms)

    def beats(self, other: "Pace") -> bool:
        """Whether it is faster by more than both spreads together."""
        return self.speedup > other.speedup + self.spread + other.spread

    def meets(self, needed: float) -> bool:
        """Whether the speed-up is at least `needed`, to within rounding; the median decides."""
        return self.speedup >= needed * (1 - 1e-9)

    def is_close_to(self, needed: float) -> bool:
        """Whether the spread leaves open on which side of `needed` it lies."""
        return abs(self.speedup - needed) <= self.spread

    def latency_ms(self, all_high_ms: float) -> float:
        """Return the latency that goes with this pace, on the preflight's clock."""
        return all_high_ms / self.speedup

    def spread_ms(self, all_high_ms: float) -> float:
        """Return the spread of that latency."""
        return self.latency_ms(all_high_ms) * self.spread / self.speedup
