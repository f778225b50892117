"""Contiguous prefixes and suffixes, as `polygraphy debug precision` searches.

It is here for comparison: it can only find layers at one end of the network.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.speculation import speculate


class Prefix:
    """Keeps the first or the last k layers, whichever is fewer, by bisection on k."""

    name: ClassVar[str] = "prefix"
    assumption: ClassVar[str] = "the layers to keep lie together at one end of the network"
    minimal: ClassVar[bool] = False
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        nothing: tuple[Plan, ...] = ()
        ends = yield from speculate(problem, partial(_both_ends, problem.size), nothing)
        return min(ends)


def _both_ends(size: int, ends: tuple[Plan, ...]) -> Search[tuple[Plan, ...]]:
    """Bisect from the first layer on, then from the last one back."""
    if ends:
        return ends
    forward = range(size)
    backward = forward[::-1]
    first = yield from _shortest(forward, "keep the first")
    last = yield from _shortest(backward, "keep the last")
    return Plan.of(forward[:first]), Plan.of(backward[:last])


def _shortest(order: Sequence[int], what: str) -> Search[int]:
    """Return the smallest k such that keeping the first k layers of `order` passes.

    Keeping none is known to fail, and all to pass. It assumes that passing is monotone in k;
    otherwise it finds some k that passes while k - 1 fails.
    """
    fails, passes = 0, len(order)
    while passes - fails > 1:
        middle = (fails + passes) // 2
        outcome = yield from ask(
            Plan.of(order[:middle]),
            f"{what} {middle}",
            narrowed_to=passes,
            about_left=(passes - fails).bit_length(),
        )
        if outcome.passed:
            passes = middle
        else:
            fails = middle
    return passes
