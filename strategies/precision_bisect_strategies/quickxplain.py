"""QuickXplain: the preferred minimal set with respect to an order.

It divides the ranking in halves, so it skips what is not needed in large parts at once.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.sensitivity import by_sensitivity, rank
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.speculation import speculate


class QuickXplain:
    """Divides the ranking, and keeps of each half only what the other half cannot replace.

    Junker, QuickXplain, AAAI 2004, algorithm 1, with its recursion on an explicit stack. The open
    layers lie in segments; the last segment is dropped as a whole or halved. The order decides
    which minimal set is found: the most sensitive layers are kept by preference. It takes at most
    2 k log2(n / k) + 2 k trials for k kept of n layers if passing is monotone. A trial without a
    verdict counts as one that does not pass.
    """

    name: ClassVar[str] = "quickxplain"
    assumption: ClassVar[str] = "more kept layers never hurt; sensitive ones are likely needed"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        scores = (yield from rank(problem)).scores
        kept = problem.top.kept
        order = tuple(layer for layer in by_sensitivity(scores) if layer in kept)
        start = _Open(segments=(order,))
        end = yield from speculate(problem, _decide_last, start)
        return Plan.of(end.needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """The layers found to be needed, and the open segments, most sensitive first.

    All of them together passed. `refuted` tells that they did not pass without the last segment,
    so some of it is needed. `halved` tells the same of the last two, which were one segment.
    """

    segments: tuple[tuple[int, ...], ...]
    needed: tuple[int, ...] = ()
    refuted: bool = True
    halved: bool = False

    @property
    def earlier(self) -> tuple[tuple[int, ...], ...]:
        """The segments before the last."""
        return self.segments[:-1]


def _decide_last(state: _Open) -> Search[_Open]:
    """Ask whether the last segment can go as a whole; where it cannot, halve it."""
    while state.segments and state.refuted:
        state = _narrowed(state)
    if not state.segments:
        return state
    kept = [layer for segment in state.earlier for layer in segment]
    outcome = yield from ask(
        Plan.of((*state.needed, *kept)),
        f"drop {len(state.segments[-1])}, {len(state.needed)} are needed",
        narrowed_to=len(state.needed) + len(kept) + len(state.segments[-1]),
    )
    if outcome.passed:
        # If the last half went, the earlier half holds what is needed: that is known without a
        # trial.
        return replace(state, segments=state.earlier, refuted=state.halved, halved=False)
    return replace(state, refuted=True, halved=False)


def _narrowed(state: _Open) -> _Open:
    """Go into a last segment of which something is needed."""
    last = state.segments[-1]
    if len(last) == 1:
        return _Open(segments=state.earlier, needed=(*state.needed, *last), refuted=False)
    half = len(last) // 2
    segments = (*state.earlier, last[:half], last[half:])
    return replace(state, segments=segments, refuted=False, halved=True)
