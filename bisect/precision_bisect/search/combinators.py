"""Searches made of searches: the only places that send outcomes into a generator."""

from collections.abc import Callable
from typing import TypeAlias

from precision_bisect.protocols import Search, T
from precision_bisect.trial import Outcome, Proposal

Batch: TypeAlias = tuple[Proposal, ...]
Outcomes: TypeAlias = tuple[Outcome, ...]


def feed(search: Search[T], answer: Callable[[Batch], Outcomes]) -> T:
    """Run a search to its end with the outcomes that `answer` gives; return its result."""
    try:
        batch = next(search)
        while True:
            batch = search.send(answer(batch))
    except StopIteration as end:
        result: T = end.value
        return result


def answered(search: Search[T], answer: Callable[[Batch], Search[Outcomes]]) -> Search[T]:
    """Return the same search; each batch is answered by a search of its own."""
    try:
        batch = next(search)
        while True:
            batch = search.send((yield from answer(batch)))
    except StopIteration as end:
        result: T = end.value
        return result


def mapped(
    search: Search[T],
    *,
    ask: Callable[[Proposal], Proposal] = lambda proposal: proposal,
    tell: Callable[[Proposal, Outcome], Outcome] = lambda _, outcome: outcome,
) -> Search[T]:
    """Return the same search; `ask` changes each proposal, `tell` what it is told of each."""

    def answer(batch: Batch) -> Search[Outcomes]:
        outcomes = yield tuple(map(ask, batch))
        return tuple(map(tell, batch, outcomes))

    return answered(search, answer)
