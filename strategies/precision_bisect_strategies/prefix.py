"""Contiguous prefixes and suffixes, as `polygraphy debug precision` searches."""

from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.bisection import shortest_prefix


class Prefix:
    """Keeps the first or the last k layers, whichever is fewer, by bisection on k."""

    name: ClassVar[str] = "prefix"
    assumption: ClassVar[str] = "the layers to keep lie together at one end of the network"
    minimal: ClassVar[bool] = False
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Bisect from both ends of the network."""
        forward = tuple(range(problem.size))
        backward = forward[::-1]
        first = yield from shortest_prefix(forward, "keep the first")
        last = yield from shortest_prefix(backward, "keep the last")
        return min(Plan.of(forward[:first]), Plan.of(backward[:last]))
