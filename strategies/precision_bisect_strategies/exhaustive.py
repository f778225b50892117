"""Every set, smallest first: the truth, for small models and for tests."""

from itertools import combinations
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask

LARGEST = 16


class Exhaustive:
    """Tries all sets of 1 layer, then of 2, and so on; the first that passes is a minimum."""

    name: ClassVar[str] = "exhaustive"
    assumption: ClassVar[str] = f"none; at most {LARGEST} layers, up to 2^n trials"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = LARGEST

    def search(self, problem: Problem) -> Search[Plan]:
        """Enumerate by size."""
        for size in range(1, problem.size):
            for kept in combinations(range(problem.size), size):
                outcome = yield from ask(Plan.of(kept), f"a set of {size}")
                if outcome.passed:
                    return Plan.of(kept)
        return Plan.all_high(problem.size)
