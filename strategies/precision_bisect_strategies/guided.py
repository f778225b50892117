"""The default: the emulator ranks, groups of layers run low on trial, each trial tells much.

Nested adaptive group testing (Hwang, JASA 1972), with beliefs in place of one known probability.
"""

from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import cheapest, unrepeated


class Guided:
    """Searches along a ranking by sensitivity, and learns how good the ranking is.

    From a plan that passes, groups of layers are demoted on top of what passed (see `demotion`).
    They are as large as the outcomes so far make likely to pass (see `beliefs`). A poor ranking
    costs trials, never correctness.
    """

    name: ClassVar[str] = "guided"
    assumption: ClassVar[str] = "the emulator's sensitivities say something of the engine's"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Rank, then demote; what is known is not asked again."""
        # Imported here: numpy takes longer to load than `--help` may take.
        from precision_bisect_strategies.beginning import demoted

        return (yield from cheapest(unrepeated(demoted(problem)), problem.cost))
