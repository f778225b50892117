"""Timing engines in turns with the engine that keeps every layer high.

Clocks of an accelerator drift: they rise under load and fall with heat. Two engines that are timed
minutes apart differ by that alone. So the all-high engine stays open, both are timed in short
turns, and their ratio counts. Each turn of the candidate lies between two of the baseline, whose
mean cancels any drift that is linear over three turns (benchmarks/latency_clocks.py).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, quantiles
from threading import Lock
from typing import Self

from precision_bisect.graphs.batching import stacked
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Engine, Sample
from precision_bisect.trial import Latency

TURNS = 5
"""Turns of each engine that count; the median of five ignores two disturbed ones."""


class Stopwatch:
    """Times engines, one at a time. Leaving its context leaves the engine that it holds.

    With a `baseline` plan (every layer high) each engine is compared with that of the baseline.
    `build` makes it when it is first needed, unless `adopt` handed one over, and it stays open.
    Without a baseline engines are timed alone. They run on the first sample, or at the `batch`.
    """

    def __init__(
        self,
        build: Callable[[Plan], Engine] | None = None,
        baseline: Plan | None = None,
        batch: int | None = None,
    ) -> None:
        self._build = build
        self._batch = batch
        self._stack: Sample | None = None
        self._baseline = baseline
        self._engine: Engine | None = None
        self._held = ExitStack()
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine = None
        self._held.close()

    def time(self, plan: Plan, engine: Engine, feeds: Sequence[Sample]) -> Latency | None:
        """Return the latency of a plan's engine; None where the backend measures none.

        Where the baseline cannot be built, such as for want of memory beside the engine, this one
        is timed alone. Raises BackendFailure where an engine does not run.
        """
        # One at a time: two engines on one device would time each other.
        with self._lock:
            if self._batch is None:
                return self._time(plan, engine, feeds[0])
            # Always the same object: a CUDA graph is captured for one.
            if self._stack is None:
                self._stack = stacked(feeds, self._batch)
            latency = self._time(plan, engine, self._stack)
            return latency and replace(latency, batch=self._batch)

    def _time(self, plan: Plan, engine: Engine, feed: Sample) -> Latency | None:
        if self._build is None or self._baseline is None:
            return _alone(engine, feed)
        if plan == self._baseline:
            return _of_baseline(_alone(engine, feed))
        # Without a clock no baseline is needed; the turn warms up what has one.
        if engine.time(feed) is None:
            return None
        if self._engine is None:
            try:
                self._engine = self._held.enter_context(self._build(self._baseline))
            except BackendFailure:
                return _alone(engine, feed)
        return _in_turns(engine, self._engine, feed)

    def adopt(self, plan: Plan, engine: Engine, stack: ExitStack) -> None:
        """Keep an entered engine open if it is the baseline's and there is none yet.

        `stack` would close the engine; it is emptied when the engine is kept.
        """
        if plan == self._baseline and self._engine is None:
            self._engine = engine
            self._held.push(stack.pop_all())


def _alone(engine: Engine, feed: Sample) -> Latency | None:
    # The first turn warms up and is dropped.
    return _joined([engine.time(feed) for _ in range(1 + TURNS)][1:])


def _of_baseline(latency: Latency | None) -> Latency | None:
    """Return the latency of the baseline itself, which is as fast as itself."""
    if latency is None:
        return None
    return replace(latency, baseline_ms=latency.median_ms, speedup=1.0, speedup_spread=0.0)


def _in_turns(engine: Engine, baseline: Engine, feed: Sample) -> Latency | None:
    """Time an engine that is warm in turns with the baseline, whose first turn is not counted."""
    baseline.time(feed)
    theirs, ours = [baseline.time(feed)], []
    for _ in range(TURNS):
        ours.append(engine.time(feed))
        theirs.append(baseline.time(feed))
    own, high = _joined(ours), [turn.median_ms for turn in theirs if turn is not None]
    if own is None or len(high) < len(theirs):
        return None
    around = [fmean(pair) for pair in pairwise(high)]
    ratios = [
        beside / turn.median_ms
        for beside, turn in zip(around, ours, strict=True)
        if turn is not None and turn.median_ms > 0
    ]
    # A turn without a figure would leave the mean lopsided: no ratio at all is honest.
    if len(ratios) < TURNS:
        return None
    return replace(
        own, baseline_ms=median(high), speedup=median(ratios), speedup_spread=_spread(ratios)
    )


def _joined(turns: list[Latency | None]) -> Latency | None:
    """Return the latency over all turns; None if one has none.

    The spread is the larger of two: that of single runs, and that of the turns' medians.
    """
    latencies = [turn for turn in turns if turn is not None]
    if len(latencies) < len(turns):
        return None
    medians = [turn.median_ms for turn in latencies]
    return Latency(
        median_ms=median(medians),
        spread_ms=max(median(turn.spread_ms for turn in latencies), _spread(medians)),
        runs=sum(turn.runs for turn in latencies),
        method=latencies[0].method,
    )


def _spread(values: list[float]) -> float:
    """Return the interquartile range."""
    # "inclusive": with five values the exclusive quartiles would be extrapolated.
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low
