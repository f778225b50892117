"""What a result says of speed: limits and measurements, and the fastest plan that holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_bisect.errors import counted
from precision_bisect.plan_costs import SpeedLimits
from precision_bisect.runs.results.low_share import LowShare
from precision_bisect.runs.results.other_targets import WithTf32
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure, Latency, LatencyMethod, Stability

AS_FAST = 0.02
"""Share of the time by which plans count as equally fast. Repeated measurements of one engine
differ by about that."""
RANK_CORRELATION, RANK_CORRELATIONS = 0.90, (0.56, 0.98)
"""Spearman's coefficient of estimated times with what an H200 measured, the median of ten networks
and the range: benchmarks/results/estimates.json."""


@dataclass(frozen=True, kw_only=True)
class LatencySection:
    """The medians in milliseconds, None for what was not measured, and for no figure at all.

    `latency_spread_ms` is that of the answer's.
    """

    latency_ms: Mapping[str, Figure | None] | None = None
    latency_spread_ms: Figure | None = None
    latency_method: LatencyMethod | None = None
    latency_batch: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A plan that none beats in error and speed.

    If nothing was timed, `latency_ms`, `spread_ms` and `speedup` (over all-high) are None; `cost`,
    the estimated milliseconds that keeping the layers costs, stands in. `error` is None where
    errors are no figures.
    """

    kept_count: Count
    kept: Sequence[str] = ()
    passed: bool
    error: Figure | None
    latency_ms: Figure | None = None
    spread_ms: Figure | None = None
    speedup: Figure | None = None
    cost: Figure | None = None

    @property
    def axes(self) -> tuple[float, float]:
        """What is compared, smaller is better: latency or else cost, and error."""
        error = (0.0 if self.passed else 1.0) if self.error is None else self.error
        speed = self.latency_ms if self.latency_ms is not None else self.cost
        return (math.inf if speed is None else speed, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedReport:
    """The speed limits and what was measured of the answer; None for what was not.

    `latency_ms` is scaled to the clock of the preflight. `met` is decided by the medians;
    `within_spread` tells that the spread leaves it open. `found_first` has the layers of the
    certified plan, if another one was taken for its speed.
    """

    max_latency_ms: Figure | None
    min_speedup: Figure | None
    latency_ms: Figure | None = None
    speedup: Figure | None = None
    speedup_spread: Figure | None = None
    met: bool | None = None
    within_spread: bool | None = None
    found_first: Sequence[str] | None = None

    def limits(self) -> SpeedLimits:
        """Return the limits alone. Raises UsageError for what cannot be one."""
        return SpeedLimits(max_latency_ms=self.max_latency_ms, min_speedup=self.min_speedup)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanToDeploy:
    """The fastest plan that holds, with room below the limit; its layers need not be few.

    `error` is the largest of its own trial, whose copies of the samples `stability` counts, with
    `tf32` in what stays FP32 or without. By the spread of its errors it may be over on
    `unseen_share` of unseen inputs, None where that says nothing. `time` and `answer_time` are an
    inference's, with this plan and with the answer: shares of that with every layer high, all in
    the plan's setting, for the batch of the samples. `full_batch_time` is this plan's for one
    so large that launches do not count. `fp32_tf32_time` is that of every layer high with TF32,
    as a share of that without, `tf32_time` this plan's so. They are `estimated` where nothing was
    timed, with this `rank_correlation`. The plan has `casts` between types; `low_share` is what
    runs low. Weights take `weight_bytes` with it, `answer_weight_bytes` with the answer,
    `high_weight_bytes` with every layer high. A `fused` plan is of the model with its norms put
    together, its shares are of the file's own FP32.
    """

    kept: Sequence[str]
    error: Figure | None
    stability: Stability | None = None
    unseen_share: Figure | None = None
    time: Figure
    answer_time: Figure
    fp32_tf32_time: Figure
    tf32_time: Figure | None = None
    full_batch_time: Figure
    casts: Count
    weight_bytes: Count
    answer_weight_bytes: Count
    high_weight_bytes: Count
    low_share: LowShare | None = None
    estimated: bool
    latency: Latency | None = None
    tf32: bool = False
    fused: bool = False
    rank_correlation: Figure | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        correlation = RANK_CORRELATION if self.estimated else None
        object.__setattr__(self, "rank_correlation", correlation)

    def words(self, low: str, high: str, *, fp32_wins: bool = False) -> str:
        """Return what to deploy in few words: what the plan keeps in the high type, or FP32."""
        if fp32_wins:
            return high.upper()
        kept = f"{counted(len(self.kept), 'layer')} in {high.upper()}"
        kept = kept if self.kept else f"every layer in {low.upper()}"
        return f"norms put together, {kept}" if self.fused else kept

    def fp32_gain(self, tf32: WithTf32 | None) -> float:
        """Return how many times as fast as this FP32 is, 0 where nothing tells.

        FP32 is with TF32, as the libraries run it, where it holds so.
        """
        if self.latency is not None:
            return 1 / self.latency.speedup if self.latency.speedup else 0.0
        if self.rivals_tf32(tf32):
            return self.time / (1.0 if self.tf32 else self.fp32_tf32_time)
        return self.tf32_time if self.tf32 and self.tf32_time is not None else self.time

    def rivals_tf32(self, tf32: WithTf32 | None) -> bool:
        """Whether FP32 in TF32 is a rival: it holds, and is as safe on unseen inputs."""
        if tf32 is None or not tf32.fp32_passed:
            return False
        return as_safe(tf32.fp32_unseen, self.unseen_share)

    def loses_to_fp32(self, tf32: WithTf32 | None, *, smallest: bool) -> bool:
        """Whether FP32 is as fast: of two that engines time alike the given model is deployed.

        The `smallest` plan stands by its weights.
        """
        if smallest:
            return self.weight_bytes >= self.high_weight_bytes
        return self.fp32_gain(tf32) >= (1 if self.estimated else 1 - AS_FAST)
