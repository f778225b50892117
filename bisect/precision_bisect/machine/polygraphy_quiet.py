"""Polygraphy without what nobody here needs: its own log lines, and torch.

Verdicts are reported here, once. To tell whether an array is one of torch, Polygraphy imports it
where it is installed: seconds, and some 200 MB. Such settings are the process's, and several
threads want them at the same time.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any


class SharedContext(ContextDecorator):
    """A context that any number of threads may be in: made by the first, left with the last.

    A plain context that saves and restores a setting would restore, where threads overlap, what
    another thread had set. Functions take it as a decorator, too.
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


def quiet() -> SharedContext:
    """Silence Polygraphy's logger inside the block, for all threads; no log is made, either."""
    return _QUIET


def without_torch() -> SharedContext:
    """Keep Polygraphy from importing torch inside the block, for all threads.

    Only around what handles NumPy arrays and runs no code of the user's, who may want torch.
    """
    return _WITHOUT_TORCH


@contextmanager
def _torch_hidden() -> Iterator[None]:
    if "torch" in sys.modules:
        yield  # it costs no more
        return
    # None is Python's own sign for a module that cannot be imported.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop("torch", None)


@contextmanager
def _silent() -> Iterator[None]:
    from polygraphy.logger import G_LOGGER

    # Its statistics, half of a comparison, are computed for the log alone. Its table of NumPy's
    # types, a third of what is left, is made anew for each question of an array's type.
    spared = [
        ("polygraphy.comparator.util", "log_output_stats", lambda _: lambda *_, **__: None),
        ("polygraphy.datatype.numpy", "_get_mapping", cache),
    ]
    with ExitStack() as stack:
        for module, name, cheaper in spared:
            stack.enter_context(_replaced(sys.modules.get(module), name, cheaper))
        stack.enter_context(G_LOGGER.verbosity(G_LOGGER.CRITICAL + 10))
        yield


@contextmanager
def _replaced(
    module: ModuleType | None, name: str, cheaper: Callable[[Callable[..., Any]], Any]
) -> Iterator[None]:
    """Have a function of a module be a cheaper one inside the block, where there is such."""
    function = getattr(module, name, None)
    if function is None:
        yield
        return
    setattr(module, name, cheaper(function))
    try:
        yield
    finally:
        setattr(module, name, function)


_QUIET = SharedContext(_silent)
_WITHOUT_TORCH = SharedContext(_torch_hidden)
