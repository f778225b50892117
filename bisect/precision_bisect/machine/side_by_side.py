"""Calls side by side, in threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def side_by_side(call: Callable[[T], U], items: Iterable[T], count: int) -> Iterator[U]:
    """Yield what a call gives for each item, in order, `count` of them at a time.

    Who stops reading leaves at most `count` - 1 computed in vain.
    """
    remaining = iter(items)
    with ThreadPoolExecutor(max(1, count)) as pool:
        # Not one `map` over all: the caller may stop, and the pool would have started the others.
        while few := list(islice(remaining, max(1, count))):
            yield from map(call, few) if len(few) == 1 else pool.map(call, few)
