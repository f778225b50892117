"""What a built engine shows beside its outputs: speed, obedience, remarks."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias, get_args

LatencyMethod: TypeAlias = Literal["host_clock", "cuda_events"]
LATENCY_METHODS: tuple[LatencyMethod, ...] = get_args(LatencyMethod)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long one inference takes on the engine, in milliseconds.

    `median_ms` over `runs` timed runs after a warm-up, inputs already on the device; `spread_ms`
    is the interquartile range. `method` is the host's clock round a launch and the wait for its
    end, or CUDA events round the launch. Where it was measured beside the engine with every layer
    high, in turns, `baseline_ms` is that one's median at the time, `speedup` how many times as
    fast this engine is, and `speedup_spread` the interquartile range of that over the turns.
    """

    median_ms: float
    spread_ms: float
    runs: int
    method: LatencyMethod = "host_clock"
    baseline_ms: float | None = None
    speedup: float | None = None
    speedup_spread: float | None = None


class Honour(StrEnum):
    """Whether a built engine computes a kept layer at the precision that was asked for."""

    HONOURED = "honoured"
    DEMOTED = "demoted"
    NOT_OBSERVABLE = "not_observable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHonour:
    """What the engine did with one kept layer, and what shows it, in one sentence."""

    layer: str
    honour: Honour
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What the builder listed with one of its remarks: its layers, or weights, by their names."""

    note: str
    names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """How a plan did on copies of the samples that differ by one part in 100,000.

    Of `copies` that ran before the verdict was clear `failed` exceeded the tolerance.
    `error_median` and `error_max` are over these copies, on the tolerance's scale; `jitter` is the
    standard deviation of the error's natural logarithm. Each is None where there are no figures.
    """

    copies: int
    failed: int
    error_median: float | None = None
    error_max: float | None = None
    jitter: float | None = None

    @classmethod
    def of(cls, failed: int, errors: Sequence[float | None]) -> "Stability":
        """Return that of copies with these errors, of which so many failed."""
        figures = [error for error in errors if error is not None]
        logs = [math.log(error) for error in figures if 0 < error < math.inf]
        return cls(
            copies=len(errors),
            failed=failed,
            error_median=statistics.median(figures) if figures else None,
            error_max=max(figures, default=None),
            jitter=statistics.stdev(logs) if len(logs) > 1 else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How ONNX Runtime was told to optimise the graph of one build.

    `level` is the name of its GraphOptimizationLevel, `disabled` the optimizers left out.
    """

    level: str
    disabled: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one build showed beside the outputs.

    `honours` has one entry per kept layer where the backend can look into its engine, else none.
    `notes` are remarks worth a line in the report: warnings of the builder, fusions switched off;
    `listed` says which layers or weights some of them mean. `stability` is there where the plan
    was judged on copies of the samples. `opening` is ONNX Runtime's.
    """

    latency: Latency | None = None
    stability: Stability | None = None
    honours: Sequence[LayerHonour] = ()
    notes: Sequence[str] = ()
    listed: Sequence[Listed] = ()
    opening: Opening | None = None

    @property
    def demoted(self) -> Sequence[LayerHonour]:
        """The kept layers that the engine computes low all the same."""
        return [entry for entry in self.honours if entry.honour is Honour.DEMOTED]

    @property
    def honoured(self) -> bool | None:
        """False when a kept layer was demoted, True when all were seen honoured, else None."""
        if self.demoted:
            return False
        seen = [entry.honour is Honour.HONOURED for entry in self.honours]
        return True if seen and all(seen) else None
