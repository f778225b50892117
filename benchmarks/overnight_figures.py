"""What a session of many trials took, and whether that is too much."""

from dataclasses import asdict, dataclass
from typing import Any

import psutil

MOST_OVERHEAD = 0.03
MOST_GROWTH = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of this process and its children: resident memory in MiB, open files, threads."""

    driver_mib: float
    children_mib: float
    files: int
    threads: int

    @classmethod
    def now(cls) -> "Sizes":
        """Return the sizes at this moment."""
        here = psutil.Process()
        children = [child.memory_info().rss for child in here.children(recursive=True)]
        return cls(
            driver_mib=round(here.memory_info().rss / 2**20, 1),
            children_mib=round(sum(children) / 2**20, 1),
            files=here.num_fds(),
            threads=here.num_threads(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one session took.

    `asked_s` are the seconds in which somebody evaluated for the driver, `evaluated_s` those of
    the evaluations themselves; `load` is the load average over one minute, before and after.
    """

    isolate: str
    trials: int
    inputs: int
    wall_s: float
    asked_s: float
    evaluated_s: float
    warm: Sizes
    end: Sizes
    load: tuple[float, float]

    @property
    def overhead(self) -> float:
        """The time of the driver itself, over that of the evaluations."""
        return (self.wall_s - self.asked_s) / self.evaluated_s

    @property
    def within(self) -> bool:
        """Whether the limits hold."""
        memory = [
            (self.warm.driver_mib, self.end.driver_mib),
            (self.warm.children_mib, self.end.children_mib),
        ]
        grown = any(end > (1.0 + MOST_GROWTH) * warm for warm, end in memory)
        more = self.end.files > self.warm.files or self.end.threads > self.warm.threads
        return self.overhead < MOST_OVERHEAD and not grown and not more

    def to_json(self) -> dict[str, Any]:
        """Return the figures as they are printed."""
        handed_s = self.asked_s - self.evaluated_s
        return {
            **asdict(self),
            "trial_ms": round(1e3 * self.evaluated_s / self.trials, 2),
            "handing_over_ms": round(1e3 * handed_s / self.trials, 2),
            "overhead": round(self.overhead, 4),
            "within": self.within,
        }
