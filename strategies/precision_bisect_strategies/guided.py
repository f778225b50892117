"""The default: rank the layers, bisect the ranking, shrink by groups; the driver certifies."""

import math
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.bisection import shortest_prefix
from precision_bisect_strategies.ranking import by_sensitivity, rank

MEMORY = 0.5
"""Weight of older stretches, against the last one, in the estimate of how dense culprits are."""


class Guided:
    """Searches along a ranking by sensitivity.

    The shortest passing prefix of the ranking is found by galloping from the number of layers that
    exceed the tolerance alone. What the prefix keeps needlessly is dropped in groups, least
    sensitive first (see `shrink`). A poor ranking costs trials, never correctness.
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
        length = yield from shortest_prefix(order, "keep the most sensitive", guess)
        return (yield from shrink(order[:length]))


def shrink(order: list[int]) -> Search[Plan]:
    """Drop what can go from a passing list of layers, the last ones first, in groups.

    Adaptive group testing (generalized binary splitting: Hwang, JASA 1972): a group that cannot
    go is halved until one layer is left, which stays; then the group size restarts where a group
    is as likely to go as not, judged by the stretches between the layers that stayed. Sizes
    double on a pass. Where nothing goes, groups are single layers, and their trials are those
    that the certificate asks for.
    """
    kept = Plan.of(order)
    pending = list(order)
    size, suspect = 1, 0  # suspect: so many last ones of pending cannot all go
    stretch, dropped, stayed = 0, 0.0, 0.0
    while pending:
        count = (suspect + 1) // 2 if suspect else min(size, len(pending))
        group = pending[-count:]
        outcome = yield from ask(
            kept.without(group),
            f"drop {count} of {len(kept)}",
            narrowed_to=len(kept),
            about_left=len(pending),
        )
        if outcome.passed:
            kept = kept.without(group)
            del pending[-count:]
            stretch += count
            size, suspect = 2 * count, max(suspect - count, 0)
        else:
            suspect = count
        if suspect == 1:
            pending.pop()
            dropped, stayed = MEMORY * dropped + stretch, MEMORY * stayed + 1
            size = max(1, round(math.log(2) * dropped / stayed))
            stretch, suspect = 0, 0
    return kept
