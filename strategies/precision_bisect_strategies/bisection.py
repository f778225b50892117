"""Bisection over nested plans, shared by strategies that walk an order."""

from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect_strategies.asking import ask


def shortest_prefix(
    order: Sequence[int], what: str, guess: int | None = None, beside: Sequence[int] = ()
) -> Search[int]:
    """Return the smallest k whose first k layers of `order` pass when kept, by bisection.

    The layers `beside` are kept in every trial, too.

    The empty prefix is known to fail and the whole order to pass. Starts at `guess` and gallops
    from there (exponential search: Bentley, Yao 1976), so a good guess costs two trials. Assumes
    that passing is monotone in k; otherwise some k is found that passes while k - 1 fails.
    """
    fails, passes = 0, len(order)
    probe, step = guess if guess is not None else (fails + passes) // 2, 1
    while passes - fails > 1:
        probe = min(max(probe, fails + 1), passes - 1)
        outcome = yield from ask(
            Plan.of((*beside, *order[:probe])),
            f"{what} {probe}",
            narrowed_to=len(beside) + passes,
            about_left=(passes - fails).bit_length(),
        )
        if outcome.passed:
            passes = probe
            probe = passes - step if guess is not None else (fails + passes) // 2
        else:
            fails = probe
            probe = fails + step if guess is not None else (fails + passes) // 2
        step *= 2
        if fails > 0 and passes < len(order):
            guess, probe = None, (fails + passes) // 2
    return passes
