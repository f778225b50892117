"""Fitting the emulator's choice to the engine, where errors do not add up.

How far an outcome is from the emulator's forecast tells how far the emulator is off, and it
chooses again within a limit that is corrected by as much. Nothing is taken on its word: a plan
counts once it passed. Workers that are left try how many of the most sensitive layers are enough.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Outcome, Proposal
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.choosing import narrowed
from precision_bisect_strategies.prediction import SAFETY, corrected, predicted

TRIES = 5
"""So many choices of the emulator are tried."""
LESS = 0.8
"""No more where keeping more layers left the error above this share: no factor corrects that."""


@dataclass(slots=True)
class Prefixes:
    """What is known of the plans that keep the most sensitive layers, and of the smallest passing.

    `order` has the layers, most sensitive first. The first `failing` of them are not enough;
    `best` is the smallest plan that passed.
    """

    order: Sequence[int]
    failing: int = 0
    best: Plan | None = None

    def of(self, length: int) -> Plan:
        """Return the plan that keeps so many."""
        return Plan.of(self.order[:length])

    def between(self, shortest: int, count: int) -> list[Plan]:
        """Return at most `count` of unknown worth, from `shortest` on, at equal ratios."""
        low = max(self.failing, shortest, 1)
        high = len(self.order if self.best is None else self.best)
        step = (high / low) ** (1 / (count + 1))
        lengths = {round(low * step**number) for number in range(1, count + 1)}
        return [self.of(length) for length in sorted(lengths) if self.failing < length < high]

    def learn(self, plans: Sequence[Plan], outcomes: Sequence[Outcome]) -> None:
        """Learn which of some plans pass; those that are no prefixes tell of themselves alone."""
        for plan, outcome in zip(plans, outcomes, strict=True):
            if outcome.passed and (self.best is None or plan < self.best):
                self.best = plan
            if outcome.failed and plan == self.of(len(plan)):
                self.failing = max(self.failing, len(plan))


def tuned(problem: Problem, order: Sequence[int], plan: Plan) -> Search[Plan]:
    """Return the smallest plan that passed, from `plan` on; the last choice where none did.

    `order` has the layers, most sensitive first. What the emulator keeps may still be too much:
    as long as half as many of the most sensitive layers pass, these are the answer.
    """
    known = Prefixes(order)
    limit: float | None = None
    worst = math.inf
    for _ in range(TRIES):
        beside = known.between(len(plan) // 2, problem.workers - 1)
        outcome, *others = yield (
            Proposal(plan=plan, reason=f"the {len(plan)} that the emulator chooses"),
            *(_sensitive(prefix) for prefix in beside if prefix != plan),
        )
        forecast = yield from predicted(ask(plan, "the error expected"), None)
        exact = corrected(problem.tolerance, forecast.error, outcome.error)
        known.learn([plan, *(each for each in beside if each != plan)], [outcome, *others])
        if exact is None or outcome.error is None:
            break
        if not outcome.passed:
            if outcome.error > LESS * worst:
                break
            worst = outcome.error
        limit = exact if outcome.passed else SAFETY * min(exact, limit or exact)
        smaller = yield from narrowed(order, plan, limit)
        if smaller == plan or (known.best is not None and len(smaller) >= len(known.best)):
            break
        plan = smaller
    if known.best is None:
        return plan
    return (yield from _halved(problem, known, known.best))


def _halved(problem: Problem, known: Prefixes, best: Plan) -> Search[Plan]:
    """Return the shortest of the prefixes of half, a quarter, ... as many layers that pass."""
    while len(best) // 2 > known.failing:
        lengths = [len(best) >> times for times in range(1, problem.workers + 1)]
        halves = [known.of(length) for length in lengths if length > known.failing]
        outcomes = yield tuple(_sensitive(half) for half in halves)
        passing = [half for half, told in zip(halves, outcomes, strict=True) if told.passed]
        known.learn(halves, outcomes)
        if not passing:
            break
        best = min(passing)
    return best


def _sensitive(plan: Plan) -> Proposal:
    return Proposal(plan=plan, reason=f"the {len(plan)} most sensitive")
