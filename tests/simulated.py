"""A backend whose outputs are what a rule says, and a driver over it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

import oracles
from oracles import Oracle
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.judging.inputs.copies import Copies
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, BackendFailure, Sample
from precision_bisect.runs.ledger.store import SqliteLedger, open_ledger
from precision_bisect.runs.monitoring.events import Event, ignore
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.search.workers import threads
from precision_bisect.trial import Evidence, Latency, Outcome, TrialStatus

SIZE = 12
Evaluate = Callable[[Plan, Sample], float]


class Unversioned:
    """What backends of tests have in common: nothing that results depend on, and no limit."""

    emulated: ClassVar[bool] = False

    def versions(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return nothing: every layer can run low."""
        return {}


class Simulated(Unversioned):
    """A backend whose one output is the error itself, against a reference of zero."""

    name: ClassVar[str] = "simulated"

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.built: list[Plan] = []
        self.afresh: list[Plan] = []
        self.shown: dict[Plan, Evidence] = {}
        self.clock: Callable[[Plan], float] = lambda plan: 1.0 + len(plan)
        self.clockless = False
        self.open = 0

    def build(self, plan: Plan, *, afresh: bool = False) -> "SimulatedEngine":
        """Note that the plan was built, and whether afresh."""
        self.built.append(plan)
        self.afresh += [plan] if afresh else []
        return SimulatedEngine(self, plan)

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the error that the rule gives."""
        return {"y": np.array([self._evaluate(plan, feed)])}


class SimulatedEngine:
    """One plan of a simulated backend; it leaves a file when it is saved."""

    def __init__(self, backend: Simulated, plan: Plan) -> None:
        self._backend = backend
        self._plan = plan

    def __enter__(self) -> Self:
        self._backend.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._backend.open -= 1

    def run(self, feed: Sample) -> Sample:
        """Return the error of the plan."""
        return self._backend.evaluate(self._plan, feed)

    def time(self, feed: Sample) -> Latency | None:
        """Return what the backend's clock says, where it works: it grows with the layers kept."""
        del feed
        if self._backend.clockless:
            raise BackendFailure(Outcome(status=TrialStatus.RUN_FAILED, message="no clock"))
        return Latency(median_ms=self._backend.clock(self._plan), spread_ms=0.0, runs=1)

    def evidence(self) -> Evidence:
        """Return what the backend says of this plan."""
        return self._backend.shown.get(self._plan, Evidence())

    def save(self, folder: Path) -> None:
        """Write down which plan it was."""
        (folder / "engine").write_text(self._plan.key)


def by(oracle: Oracle) -> Evaluate:
    """Return the rule of an oracle: its error, or its failure."""

    def evaluate(plan: Plan, _: Sample) -> float:
        outcome = oracle(plan.kept)
        if outcome.error is None:
            raise BackendFailure(outcome)
        return outcome.error

    return evaluate


def samples(judged: int = 1, held_out: int = 0, pool: Sequence[int] | None = None) -> SampleSets:
    """Return samples whose feeds are numbered, judging ones first; the pool is all of these."""
    feeds: list[Sample] = [{"x": np.array([i])} for i in range(judged + held_out)]
    zeros: list[Sample] = [{"y": np.zeros(1)} for _ in feeds]
    pool = range(judged) if pool is None else pool
    return SampleSets(
        feeds=feeds,
        pool=pool,
        reference=[zeros[i] for i in pool],
        held_out=range(judged, judged + held_out),
        given=zeros,
    )


def copies_of(sets: SampleSets, count: int = 16) -> Copies:
    """Return copies whose feeds are floats that FP16 does not hold."""
    floats = replace(sets, feeds=[{"x": feed["x"] + 3.1} for feed in sets.feeds])
    return Copies(samples=floats, count=count, refer=lambda feed: {"y": np.zeros(1)})


def driver_of(
    path: Path,
    backend: Backend,
    *,
    emulator: Backend | None = None,
    budget: Budget | None = None,
    observer: Callable[[Event], None] = ignore,
    held_out: int = 0,
    workers: int = 1,
    stopwatch: Stopwatch | None = None,
    engines: Path | None = None,
    copies: Callable[[SampleSets], Copies] | None = None,
    sets: SampleSets | None = None,
) -> tuple[Driver, SqliteLedger]:
    """Return a driver over a backend, with a real comparator and a ledger on disk."""
    ledger = open_ledger(path / "ledger.sqlite", {}, resume=True)
    comparator = PolygraphyComparator(
        metric="elementwise",
        atol=Tolerance(default=oracles.TOLERANCE),
        rtol=Tolerance(default=0.0),
        outputs=("y",),
    )
    sets = sets or samples(held_out=held_out)
    evaluator = Evaluator(
        backend=backend,
        emulator=emulator or backend,
        comparator=comparator,
        samples=sets,
        keep=path,
        engines=engines,
        stopwatch=stopwatch or Stopwatch(),
        copies=None if copies is None else copies(sets),
    )
    driver = Driver(threads(evaluator, workers), ledger, budget or Budget(), observer)
    return driver, ledger


@contextmanager
def driven(path: Path, backend: Backend, **about: Any) -> Iterator[Driver]:
    """Give the driver of `driver_of`, with its ledger open."""
    driver, ledger = driver_of(path, backend, **about)
    with ledger:
        yield driver
