"""The default: rank the layers, bisect the ranking, shrink by groups; the driver certifies."""

from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.bisection import shortest_prefix
from precision_bisect_strategies.by_prediction import by_prediction
from precision_bisect_strategies.ranking import by_sensitivity, rank
from precision_bisect_strategies.shrinking import shrink


class Guided:
    """Searches along a ranking by sensitivity.

    The shortest passing prefix of the ranking is found by galloping from the number of layers that
    exceed the tolerance alone. What the prefix keeps needlessly is dropped in groups, least
    sensitive first (see `shrink`). Where trials are builds, the emulator goes that way first, and
    the engine is asked for what it predicts (see `by_prediction`). A poor ranking or prediction
    costs trials, never correctness.
    """

    name: ClassVar[str] = "guided"
    assumption: ClassVar[str] = "sensitivity of single layers predicts which must be kept"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Rank, bisect, shrink."""
        scores = yield from rank(problem)
        order = by_sensitivity(scores)
        limit = problem.tolerance if problem.tolerance is not None else 0.0
        guess = sum(score > limit for score in scores)
        if problem.predicts:
            return (yield from by_prediction(problem, order, guess))
        length = yield from shortest_prefix(order, "keep the most sensitive", guess)
        return (yield from shrink(order[:length]))
