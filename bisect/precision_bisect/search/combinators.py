"""Passing on a search's proposals and outcomes, changed on the way."""

from collections.abc import Callable
from typing import TypeAlias

from precision_bisect.protocols import Search, T
from precision_bisect.trial import Outcome, Proposal

Ask: TypeAlias = Callable[[Proposal], Proposal]
Tell: TypeAlias = Callable[[Proposal, Outcome], Outcome]


def relay(search: Search[T], *, ask: Ask | None = None, tell: Tell | None = None) -> Search[T]:
    """Return the same search; `ask` changes each proposal, `tell` what it is told of each."""
    try:
        batch = next(search)
        while True:
            outcomes = yield batch if ask is None else tuple(map(ask, batch))
            if tell is not None:
                outcomes = tuple(map(tell, batch, outcomes))
            batch = search.send(outcomes)
    except StopIteration as end:
        result: T = end.value
        return result
