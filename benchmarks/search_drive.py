"""Drives searches over a judge of plans, and counts what they ask.

Every distinct build is counted once. All-high and all-low are known from the preflight and count
for nobody. Forecasts of the emulator are counted apart.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from search_oracles import Instance, Mask

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials, noting
from precision_bisect.search.certificate.sparing import misled, sparing
from precision_bisect.search.limits_and_noise import within
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus, Verdict

BLOCK, STAGE = 5, 50
TOLERANCE = 1.0
_DRAWS = {Kind.AGAIN: 1, Kind.REBUILD: 2}
"""Which build of a plan a kind is."""
Certificate: TypeAlias = Literal["forecasts", "full"]
Start: TypeAlias = Callable[[Problem], Search[Plan]]
Judge: TypeAlias = Callable[[Mask, Kind], Outcome]
"""Says what building, or forecasting, comes to when the layers of a mask run low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One build that was asked for: how many layers it kept, and whether it passed."""

    kept: int
    passed: bool


class OutOfCalls(Exception):
    """A search asked for more builds than it is given."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """Answers the proposals of searches and counts them.

    `batches` has the number of new builds of every batch that had any. `seconds` is the CPU time
    of the searches themselves, without the judge's. At most `most` builds are answered; the next
    one raises OutOfCalls.
    """

    judge: Judge
    size: int
    most: float = math.inf
    calls: list[Call] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    forecasts: int = 0
    seconds: float = 0.0
    known: dict[tuple[Kind, bytes], Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for low in (np.zeros(self.size, dtype=bool), np.ones(self.size, dtype=bool)):
            key = Kind.JUDGE, np.packbits(low).tobytes()
            if key not in self.known:
                self.known[key] = self.judge(low, Kind.JUDGE)

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends, and return its result. Raises OutOfCalls."""
        started, used, judging = time.perf_counter(), time.process_time(), 0.0
        try:
            batch = next(search)
            while True:
                before, asked = len(self.calls), time.perf_counter()
                answers = tuple(self.answer(proposal) for proposal in batch)
                judging += time.perf_counter() - asked
                if len(self.calls) > before:
                    self.batches.append(len(self.calls) - before)
                batch = search.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            # The CPU's clock can be slow to read: once, and shared out by the wall's.
            searching = 1.0 - judging / (time.perf_counter() - started)
            self.seconds += searching * (time.process_time() - used)

    def answer(self, proposal: Proposal) -> Outcome:
        """Return the outcome of one proposal. Raises OutOfCalls."""
        low = low_mask(proposal.plan, self.size)
        key = proposal.kind, np.packbits(low).tobytes()
        if key not in self.known:
            forecast = proposal.kind is Kind.PREDICT
            if not forecast and len(self.calls) >= self.most:
                raise OutOfCalls
            outcome = self.known[key] = self.judge(low, proposal.kind)
            if forecast:
                self.forecasts += 1
            else:
                self.calls.append(Call(kept=len(proposal.plan), passed=outcome.passed))
        return self.known[key]

    def smallest(self) -> Plan:
        """Return the smallest plan that passed; all-high where no build did."""
        passed = (
            np.unpackbits(np.frombuffer(key, np.uint8), count=self.size) == 0
            for (kind, key), outcome in self.known.items()
            if kind is not Kind.PREDICT and outcome.passed
        )
        return min(Plan.of(int(i) for i in np.flatnonzero(kept)) for kept in passed)

    def rounds(self, workers: int) -> int:
        """Return how long the batches took with so many workers, in builds."""
        return sum(-(-batch // workers) for batch in self.batches)

    def speculated(self, workers: int) -> int:
        """Return the rounds of a sequential search that speculates as well as it can.

        The best of: its own batches; all outcomes of the next builds prepared for (a binary tree);
        the next builds bet on to fail, or to pass, up to the first that does not.
        """
        levels = (workers + 1).bit_length() - 1
        tree = -(-len(self.calls) // levels)
        return min(self.rounds(workers), tree, self._bet(False, workers), self._bet(True, workers))

    def _bet(self, expected: bool, workers: int) -> int:
        rounds, room = 0, 0
        for call in self.calls:
            rounds, room = (rounds + 1, workers) if not room else (rounds, room)
            room = room - 1 if call.passed is expected else 0
        return rounds

    def judged(self) -> Iterable[tuple[Plan, Outcome]]:
        """Return every plan that was judged, both ends too, with its outcome."""
        for (kind, key), outcome in self.known.items():
            if kind is Kind.JUDGE:
                low = np.unpackbits(np.frombuffer(key, np.uint8), count=self.size)
                yield Plan.of(int(i) for i in np.flatnonzero(low == 0)), outcome


def simulated(instance: Instance) -> Judge:
    """Return the judge of a simulated network; every further build draws its noise afresh."""

    def judge(low: Mask, kind: Kind) -> Outcome:
        if kind is Kind.PREDICT:
            return outcome(instance.emulator.error(low))
        return outcome(instance.truth.error(low, _DRAWS.get(kind, 0)))

    return judge


def blind(judge: Judge) -> Judge:
    """Return the judge with forecasts that say nothing: each low layer adds a ninth.

    ProbDD's prior of each layer is then the 0.1 of its paper.
    """

    def without_emulator(low: Mask, kind: Kind) -> Outcome:
        return outcome(low.sum() / 9) if kind is Kind.PREDICT else judge(low, kind)

    return without_emulator


def outcome(error: float) -> Outcome:
    """Return the outcome of a build with this error; the tolerance is 1."""
    verdict = Verdict.PASS if error <= TOLERANCE else Verdict.FAIL
    return Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=error)


def problem(size: int, *, workers: int = 1, noise: float = 0.0, seed: int = 0) -> Problem:
    """Return the problem that searches are given: blocks of 5 layers, stages of 10 blocks."""
    names = [f"/stage{i // STAGE}/block{i // BLOCK}/layer{i}" for i in range(size)]
    return Problem(
        names=names,
        tolerance=TOLERANCE,
        seed=seed,
        builds=True,
        workers=workers,
        noise=noise,
    )


def certified(start: Start, bench: Bench, asked: Problem, mode: Certificate) -> Plan:
    """Search and certify on the bench, as a run does; return the plan."""
    seen = JudgedTrials(tolerance=TOLERANCE, size=asked.size)
    for kept, found in bench.judged():
        seen.note(Proposal(plan=kept), found)

    def course() -> Search[Plan]:
        search = start(asked)
        plan = yield from sparing(search, seen) if mode == "forecasts" else search
        plan = yield from certify(asked, plan, mode, seen)
        if not misled(seen):
            return plan
        seen.spared.clear()
        plan = yield from start(replace(asked, passing=plan))
        return (yield from certify(asked, plan, "full", seen))

    return bench.run(noting(within(course(), asked.tolerance), seen))


def low_mask(plan: Plan, size: int) -> Mask:
    """Return the layers that run low as a mask of shape (size,)."""
    low = np.ones(size, dtype=bool)
    low[np.fromiter(plan.kept, dtype=np.int64, count=len(plan))] = False
    return low
