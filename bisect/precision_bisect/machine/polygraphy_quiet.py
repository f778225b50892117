"""Polygraphy without what nobody here needs: its own log lines, and torch.

Verdicts are reported here, once. To tell whether an array is one of torch, Polygraphy imports it
where it is installed: seconds, and some 200 MB.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from precision_bisect.machine.shared_context import SharedContext


def quiet() -> AbstractContextManager[None]:
    """Silence Polygraphy's logger inside the block, for all threads; no log is made, either."""
    return _QUIET


def without_torch() -> AbstractContextManager[None]:
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
    with ExitStack() as held:
        for module, name, cheaper in spared:
            held.enter_context(_replaced(sys.modules.get(module), name, cheaper))
        held.enter_context(G_LOGGER.verbosity(G_LOGGER.CRITICAL + 10))
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
