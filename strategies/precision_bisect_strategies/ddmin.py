"""Delta debugging: ddmin over the set of kept layers.

A layer is "in" while it is kept; the test fails (is interesting) while the plan passes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.speculation import speculate


class Ddmin:
    """Minimizes the kept set without a ranking (Zeller, Hildebrandt, TSE 2002, section 3.2).

    It tries each of g chunks of the kept layers alone, then each complement, then doubles g. The
    end is 1-minimal. It costs O(k^2 + k log n) trials, more if passing is not monotone.
    """

    name: ClassVar[str] = "ddmin"
    assumption: ClassVar[str] = "none; small sets only where few layers matter"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        start = _Round(kept=problem.top.indices)
        end = yield from speculate(problem, _try_next, start)
        return Plan.of(end.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A passing set, cut into `chunks`: each is tried alone, then each is dropped.

    `tried` counts both. Two chunks are each other's complement, so neither is dropped.
    """

    kept: tuple[int, ...]
    chunks: int = 2
    tried: int = 0

    @property
    def over(self) -> bool:
        """Whether every choice of this round was tried."""
        return self.tried == (2 * self.chunks if self.chunks > 2 else self.chunks)

    @property
    def alone(self) -> bool:
        """Whether the next choice is a chunk, not what is left without one."""
        return self.tried < self.chunks

    def choice(self) -> tuple[int, ...]:
        """Return what the next trial keeps."""
        number = self.tried % self.chunks
        start, end = (len(self.kept) * i // self.chunks for i in (number, number + 1))
        return self.kept[start:end] if self.alone else self.kept[:start] + self.kept[end:]


def _try_next(now: _Round) -> Search[_Round]:
    """Try one chunk or complement; after the last one, cut finer."""
    if now.over and now.chunks < len(now.kept):
        now = replace(now, chunks=min(2 * now.chunks, len(now.kept)), tried=0)
    if now.over or len(now.kept) == 1:
        return now
    choice = now.choice()
    outcome = yield from ask(
        Plan.of(choice),
        f"{'keep only' if now.alone else 'drop'} chunk {now.tried % now.chunks + 1} "
        f"of {now.chunks}",
        narrowed_to=len(now.kept),
    )
    if outcome.passed:
        # As in the paper: after a chunk alone begin anew, after a complement keep the granularity.
        return _Round(kept=choice, chunks=2 if now.alone else max(now.chunks - 1, 2))
    return replace(now, tried=now.tried + 1)
