"""Bisection over nested plans, shared by strategies that walk along an order."""

from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect_strategies.asking import ask


def shortest_prefix(
    order: Sequence[int], what: str, guess: int | None = None, beside: Sequence[int] = ()
) -> Search[int]:
    """Return the smallest k such that keeping the first k layers of `order` passes.

    The layers `beside` are kept in every trial, too. The empty prefix is known to fail and the
    whole order to pass. The search starts at `guess` and gallops from there (exponential search:
    Bentley, Yao 1976), so a good guess costs two trials. It assumes that passing is monotone in k;
    otherwise it finds some k that passes while k - 1 fails.
    """
    fails, passes = 0, len(order)
    probe, step = guess if guess is not None else (fails + passes) // 2, 1
    while passes - fails > 1:
        # The galloping step may leave the open interval.
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
        # Both ends were met: from here on plain bisection.
        if fails > 0 and passes < len(order):
            guess, probe = None, (fails + passes) // 2
    return passes
