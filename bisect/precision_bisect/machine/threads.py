"""How many threads ONNX Runtime gets where nobody says, and calls side by side in threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, wait
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
        # Not all at once: the caller may stop, and the pool would have started the others.
        while few := list(islice(remaining, max(1, count))):
            yield from map(call, few) if len(few) == 1 else awaited(pool, call, few)


# Seconds between two looks for a signal: a limit on the delay of Ctrl-C.
_TICK_S = 0.5


def awaited(pool: Executor, call: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Yield what `pool.map` does; signals are answered meanwhile.

    Python answers them in the main thread, between its instructions. One that another thread
    receives, or that comes just before a wait, does not interrupt that wait.
    """
    futures = [pool.submit(call, item) for item in items]
    try:
        for future in futures:
            while not wait([future], _TICK_S).done:
                continue
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


MOST_OF_ONE_SESSION = 8
"""More have brought nothing worth their cores in any model that was measured."""
# A thread of its own pays from so many seconds of computation a layer on.
_WORTH_S = 2e-5
# The same where cores could compute other samples instead, which never wait for each other.
_WORTH_AT_ONCE_S = 5e-4
# Handing a sample to another thread pays from so many seconds of computation on.
_WORTH_HANDING_S = 1e-3


def usable() -> int:
    """Return how many threads are of use here, however much there is to compute.

    Counts the physical cores that this process may use, by its affinity and its control group.
    """
    # Both are for late code.
    import psutil
    from loky import cpu_count

    return int(
        min(
            MOST_OF_ONE_SESSION,
            cpu_count(),
            psutil.cpu_count(logical=False) or MOST_OF_ONE_SESSION,
        )
    )


def fitting(seconds: float, layers: int, samples: int = 1, most: int = 0) -> int:
    """Return how many threads compute so many layers best, `most` at most (0: all of use).

    `seconds` are those that all cores together take for one inference. Waking threads for a layer
    costs more than a small one takes; results do not depend on it.
    """
    worth = _WORTH_S if samples == 1 else _WORTH_AT_ONCE_S
    return max(1, min(most or usable(), round(seconds / max(layers, 1) / worth)))


def samples_at_once(seconds: float, threads: int, most: int = 0) -> int:
    """Return how many samples to compute side by side, each on so many threads.

    `seconds` and `most` are as for `fitting`; side by side they take memory, and no more than
    there are cores are any faster.
    """
    from loky import cpu_count

    count = min(most or usable(), int(cpu_count())) // threads
    return 1 if seconds < _WORTH_HANDING_S else max(1, count)
