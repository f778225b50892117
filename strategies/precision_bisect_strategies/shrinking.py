"""Dropping layers from a list that passes."""

import math

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect_strategies.asking import ask

MEMORY = 0.5
"""Weight of older stretches, against the last one, in the estimate of how dense culprits are."""


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
