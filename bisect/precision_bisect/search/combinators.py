"""Searches made of searches: the only places that send outcomes into a generator.

A `Search` is a generator that yields batches of proposals and receives their outcomes. The loop of
`next`, `send` and `StopIteration` is easy to get wrong, so it stands here and nowhere else.
"""

from collections.abc import Callable
from typing import TypeAlias

from precision_bisect.protocols import Search, T
from precision_bisect.trial import Outcome, Proposal

Batch: TypeAlias = tuple[Proposal, ...]
Outcomes: TypeAlias = tuple[Outcome, ...]


def feed(search: Search[T], answer: Callable[[Batch], Outcomes]) -> T:
    """Run a search to its end with the outcomes that `answer` gives; return its result.

    What `answer` raises arrives in the search, which may end with what it has.
    """
    try:
        batch = next(search)
        while True:
            try:
                outcomes = answer(batch)
            except BaseException as error:  # such as Ctrl-C: an answer that stands is kept
                batch = search.throw(error)
            else:
                batch = search.send(outcomes)
    except StopIteration as end:
        result: T = end.value
        return result


def answered(search: Search[T], answer: Callable[[Batch], Search[Outcomes]]) -> Search[T]:
    """Return the same search, with each batch answered by another search, which may ask more.

    What that raises, or what is thrown into it, arrives in the search.
    """
    try:
        batch = next(search)
        while True:
            try:
                outcomes = yield from answer(batch)
            except BaseException as error:  # as in `feed`
                batch = search.throw(error)
            else:
                batch = search.send(outcomes)
    except StopIteration as end:
        result: T = end.value
        return result


def mapped(
    search: Search[T],
    *,
    ask: Callable[[Proposal], Proposal] = lambda proposal: proposal,
    tell: Callable[[Proposal, Outcome], Outcome] = lambda _, outcome: outcome,
) -> Search[T]:
    """Return the same search: `ask` changes each proposal, `tell` changes its outcome."""

    def answer(batch: Batch) -> Search[Outcomes]:
        outcomes = yield tuple(map(ask, batch))
        return tuple(map(tell, batch, outcomes))

    return answered(search, answer)
