"""Every set, smallest first: the truth, for small models and for tests."""

from itertools import chain, combinations, islice
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Proposal

MOST_LAYERS = 16
"""Layers; 2^16 trials of 0.01 s on the emulator take ten minutes."""


class Exhaustive:
    """Tries all sets of 1 layer, then of 2, and so on; the first that passes is a minimum."""

    name: ClassVar[str] = "exhaustive"
    assumption: ClassVar[str] = f"none; at most {MOST_LAYERS} layers, up to 2^n trials"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = MOST_LAYERS

    def search(self, problem: Problem) -> Search[Plan]:
        layers = range(problem.size)
        every = chain.from_iterable(combinations(layers, size) for size in layers[1:])
        while some := tuple(islice(every, problem.workers)):
            batch = tuple(
                Proposal(plan=Plan.of(kept), reason=f"a set of {len(kept)}") for kept in some
            )
            outcomes = yield batch
            for proposal, outcome in zip(batch, outcomes, strict=True):
                if outcome.passed:
                    return proposal.plan
        return Plan.all_high(problem.size)
