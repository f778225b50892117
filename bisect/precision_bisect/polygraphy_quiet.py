"""Polygraphy without what nobody here needs: its own log lines, and torch.

Verdicts are reported here, once. To tell whether an array is one of torch, Polygraphy imports it
where it is installed: seconds, and some 200 MB.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from precision_bisect.shared_context import SharedContext


def quiet() -> AbstractContextManager[None]:
    """Silence Polygraphy's logger inside the block, for all threads."""
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


def _silent() -> AbstractContextManager[object]:
    from polygraphy.logger import G_LOGGER

    verbosity: AbstractContextManager[object] = G_LOGGER.verbosity(G_LOGGER.CRITICAL + 10)
    return verbosity


_QUIET = SharedContext(_silent)
_WITHOUT_TORCH = SharedContext(_torch_hidden)
