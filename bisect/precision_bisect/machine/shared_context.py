"""Settings of a whole process that several threads want at the same time."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class SharedContext:
    """A context that any number of threads may be in: made by the first, left with the last.

    A plain context that saves and restores a setting would restore, where threads overlap, what
    another thread had set.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._inside = 0
        self._open: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._open is None:
                self._open = self._make()
                self._open.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._open is not None:
                opened, self._open = self._open, None
                opened.__exit__(None, None, None)
