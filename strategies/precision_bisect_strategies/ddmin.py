"""Delta debugging: ddmin over the set of kept layers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask


class Ddmin:
    """Minimizes the kept set without a ranking (Zeller, Hildebrandt, TSE 2002, section 3.2).

    Tries each of g chunks of the kept layers alone, then each complement, then doubles g. Ends
    1-minimal; costs O(k^2 + k log n) trials, more where it is not monotone.
    """

    name: ClassVar[str] = "ddmin"
    assumption: ClassVar[str] = "none; small sets only where few layers matter"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Reduce from all layers to a 1-minimal set."""
        kept: Sequence[int] = range(problem.size)
        pieces = 2
        while len(kept) > 1:
            chunks = _chunks(kept, pieces)
            alone = yield from self._first_passing(kept, chunks, "keep only")
            if alone is not None:
                kept, pieces = alone, 2
                continue
            complements = [_without(kept, chunk) for chunk in chunks] if pieces > 2 else []
            rest = yield from self._first_passing(kept, complements, "drop")
            if rest is not None:
                kept, pieces = rest, max(pieces - 1, 2)
            elif pieces < len(kept):
                pieces = min(2 * pieces, len(kept))
            else:
                break
        return Plan.of(kept)

    def _first_passing(
        self, kept: Sequence[int], choices: Sequence[Sequence[int]], what: str
    ) -> Search[Sequence[int] | None]:
        for number, choice in enumerate(choices):
            outcome = yield from ask(
                Plan.of(choice),
                f"{what} chunk {number + 1} of {len(choices)}",
                narrowed_to=len(kept),
            )
            if outcome.passed:
                return choice
        return None


def _chunks(kept: Sequence[int], pieces: int) -> list[Sequence[int]]:
    bounds = [len(kept) * i // pieces for i in range(pieces + 1)]
    return [kept[a:b] for a, b in pairwise(bounds)]


def _without(kept: Sequence[int], chunk: Sequence[int]) -> Sequence[int]:
    dropped = frozenset(chunk)
    return [layer for layer in kept if layer not in dropped]
