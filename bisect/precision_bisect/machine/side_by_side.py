"""Calls side by side, in threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def side_by_side(call: Callable[[T], U], items: Sequence[T], count: int) -> Iterator[U]:
    """Yield what a call gives for each item, in order, `count` of them at a time.

    Who stops reading leaves at most `count` - 1 computed in vain.
    """
    count = min(count, len(items))
    if count <= 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(count) as pool:
        # Not one `map` over all: the caller may stop, and the pool would have started the others.
        for start in range(0, len(items), count):
            yield from pool.map(call, items[start : start + count])
