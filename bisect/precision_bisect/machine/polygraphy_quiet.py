"""Polygraphy without what nobody here needs: its own log lines, and torch.

Verdicts are reported here, once. To tell whether an array is one of torch, Polygraphy imports it
where it is installed: seconds, and some 200 MB.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

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

    util = sys.modules.get("polygraphy.comparator.util")
    logs = getattr(util, "log_output_stats", None)
    if logs is not None:
        # Its statistics, half of a comparison, are computed for the log alone.
        util.log_output_stats = lambda *_, **__: None  # type: ignore[union-attr]
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 10):
            yield
    finally:
        if logs is not None:
            util.log_output_stats = logs  # type: ignore[union-attr]


_QUIET = SharedContext(_silent)
_WITHOUT_TORCH = SharedContext(_torch_hidden)
