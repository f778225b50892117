"""The default: the emulator ranks, groups of layers run low on trial, each trial tells much."""

from collections.abc import Callable
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import cheapest, unrepeated


class Guided:
    """Searches along a ranking by sensitivity, and learns how good the ranking is.

    From a plan that passes downwards groups of layers are demoted on top of what passed (see
    `demotion`), as large as the outcomes so far make likely to pass (see `beliefs`). A poor
    ranking costs trials, never correctness.
    """

    name: ClassVar[str] = "guided"
    assumption: ClassVar[str] = "the emulator's sensitivities say something of the engine's"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Rank, then demote; what is known is not asked again."""
        from precision_bisect_strategies.beginning import demoted

        return (yield from cheapest(unrepeated(demoted(problem)), _cost(problem)))


def _cost(problem: Problem) -> Callable[[Plan], float]:
    """Return what a plan costs: what its layers do, or one for each."""
    if not problem.costs:
        return len
    return lambda plan: sum(problem.costs[layer] for layer in plan.indices)
