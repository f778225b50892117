"""Searches made of searches: the only places that send outcomes into a generator.

A `Search` is a generator that yields batches of proposals and receives their outcomes. The loop of
`next`, `send` and `StopIteration` is easy to get wrong, so it stands here and nowhere else.
"""

from collections.abc import Callable
from typing import TypeAlias

from precision_bisect.errors import RAISED_BY_OTHERS, PluginError, PrecisionBisectError, in_words
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy, T
from precision_bisect.trial import Outcome, Proposal

Batch: TypeAlias = tuple[Proposal, ...]
Outcomes: TypeAlias = tuple[Outcome, ...]
_PROTOCOL = "report it to its author; precision_bisect.protocols says what it must do"


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


def searched_by(strategy: Strategy, problem: Problem) -> Search[Plan]:
    """Return the search of a strategy, which may be others' code.

    What is thrown into it ends it, with the plan that it ends with then, or without one. Raises
    PluginError for whatever it raises, yields or ends with that it should not.
    """
    what = f"the strategy {strategy.name}"
    thrown: list[BaseException] = []

    def is_plan(value: object) -> bool:
        return isinstance(value, Plan) and 0 <= value.mask <= Plan.all_high(problem.size).mask

    def checked(batch: Batch) -> Batch:
        listed = isinstance(batch, tuple | list)
        if not listed or not all(isinstance(proposal, Proposal) for proposal in batch):
            raise PluginError(f"{what} yields no tuple of proposals", _PROTOCOL)
        if not all(is_plan(proposal.plan) for proposal in batch):
            raise PluginError(f"{what} proposes no plan of the layers", _PROTOCOL)
        return tuple(batch)

    try:
        search = strategy.search(problem)
        batch = next(search)
        while True:
            try:
                outcomes = yield checked(batch)
            except BaseException as error:  # of whoever answers
                thrown.append(error)
                search.throw(error)
                # It asks on, and would for ever.
                raise
            batch = search.send(outcomes)
    except StopIteration as end:
        plan: Plan = end.value
        if is_plan(plan):
            return plan
        # Ended from outside, as by a spent budget, it need not have one.
        if thrown:
            raise thrown[-1] from None
        raise PluginError(f"{what} ended with no plan", _PROTOCOL) from None
    except RAISED_BY_OTHERS as error:
        if error in thrown or isinstance(error, PrecisionBisectError):
            raise
        raise PluginError(f"{what} failed: {in_words(error)}", _PROTOCOL) from error


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
