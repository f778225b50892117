"""Simulated engines with a clock: what layers and borders cost, noise, and a clock that drifts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import oracles
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, SpeedLimits, Value
from precision_bisect.protocols import Backend, Engine, Problem, Sample, Strategy
from precision_bisect.runs.results.endings import Ending
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.trial import Evidence, Latency
from precision_bisect_strategies.guided import Guided
from simulated import Evaluate, Simulated, Unversioned, driven


def chain(high_ms: Sequence[float], cast_ms: float = 0.1) -> CostGraph:
    """Return a chain of layers between an input and an output, the same Cast at every border."""
    size = len(high_ms)
    values = [Value(producer=None, readers=(0,), read_high=False, cast_ms=cast_ms)]
    for layer in range(size):
        last = layer == size - 1
        readers = () if last else (layer + 1,)
        values.append(Value(producer=layer, readers=readers, read_high=last, cast_ms=cast_ms))
    return CostGraph(tuple(high_ms), tuple(values))


class Clock:
    """Milliseconds of a plan: `base` and what the graph says, times noise, times the drift.

    `noise` is a relative standard deviation; `drift` the share by which each measurement is slower
    than the one before.
    """

    def __init__(
        self, graph: CostGraph, *, base: float = 1.0, noise: float = 0.0, drift: float = 0.0
    ) -> None:
        self.graph = graph
        self._base = base
        self._noise = noise
        self._drift = drift
        self._random = random.Random(0)
        self.readings = 0

    def true_ms(self, plan: Plan) -> float:
        """Return the milliseconds of a clock that neither drifts nor errs."""
        return self._base + self.graph.cost(plan.kept)

    def speedup(self, plan: Plan) -> float:
        """Return how many times as fast as all-high a plan truly is."""
        return self.true_ms(Plan.all_high(self.graph.size)) / self.true_ms(plan)

    def __call__(self, plan: Plan) -> float:
        """Return one measurement."""
        self.readings += 1
        luck = 1 + self._random.gauss(0, self._noise)
        return self.true_ms(plan) * luck * (1 + self._drift) ** self.readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An engine with a clock, the emulator that predicts it, and what is asked."""

    backend: Simulated
    emulator: Simulated
    clock: Clock
    problem: Problem


def case(
    evaluate: Evaluate,
    graph: CostGraph,
    limits: SpeedLimits | None,
    clock: Clock | None = None,
    *,
    emulate: Evaluate | None = None,
    seed: int = 0,
    workers: int = 1,
) -> Case:
    """Return a case whose engine has the errors of one rule and the clock of a cost graph."""
    backend = Simulated(evaluate)
    running = clock or Clock(graph)
    backend.clock = running
    return Case(
        backend=backend,
        emulator=Simulated(emulate or evaluate),
        clock=running,
        problem=replace(
            oracles.problem(graph.size, seed=seed),
            builds=True,
            workers=workers,
            costs=graph.alone_ms,
            graph=graph,
            speed=limits,
        ),
    )


def run(
    asked: Case, path: Path, *, budget: Budget | None = None, strategy: Strategy | None = None
) -> tuple[Ending, Driver]:
    """Run the whole course of a case, timed beside all-high. Raises BudgetSpent."""
    everything = Plan.all_high(asked.problem.size)
    with (
        Stopwatch(asked.backend.build, everything) as stopwatch,
        driven(
            path, asked.backend, emulator=asked.emulator, budget=budget, stopwatch=stopwatch
        ) as driver,
    ):
        return driver.run(flow(asked.problem, strategy or Guided(), Course())), driver


class Clocked(Unversioned):
    """A backend with the outputs of another one and a clock of its own."""

    name = "clocked"

    def __init__(self, backend: Backend, clock: Clock, *, hasty: bool = False) -> None:
        self.backend = backend
        self.clock = clock
        self.hasty = hasty

    def build(self, plan: Plan, *, afresh: bool = False) -> "ClockedEngine":
        """Build the plan on the other backend."""
        return ClockedEngine(self.backend.build(plan, afresh=afresh), self.clock, plan)


class ClockedEngine:
    """An engine of another backend, timed by a clock."""

    def __init__(self, engine: Engine, clock: Clock, plan: Plan) -> None:
        self._engine = engine
        self._clock = clock
        self._plan = plan

    def __enter__(self) -> Self:
        self._engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.__exit__(*error)

    def run(self, feed: Sample) -> Sample:
        """Return the other engine's outputs."""
        return self._engine.run(feed)

    def time(self, feed: Sample) -> Latency:
        """Return what the clock says."""
        del feed
        return Latency(median_ms=self._clock(self._plan), spread_ms=0.001, runs=20)

    def evidence(self) -> Evidence:
        """Return what the other engine shows."""
        return self._engine.evidence()

    def save(self, folder: Path) -> None:
        """Save nothing."""
