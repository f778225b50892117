"""What is asked of a plan's speed, and how fast a plan was measured.

There is one scale: how many times as fast a plan is as the one with every layer high, measured
in turns with it (`stopwatch`). A limit in milliseconds is the speed-up that it takes from the
all-high latency of the preflight, so a clock that drifted since decides nothing.
"""

from dataclasses import dataclass

from precision_bisect.errors import UsageError
from precision_bisect.evidence import Latency


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
                raise UsageError(f"{flag} {value:g} is not a figure above zero")

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
