"""Polygraphy without its own log lines: verdicts are reported here, once."""

from contextlib import AbstractContextManager

from precision_bisect.shared_context import SharedContext


def quiet() -> AbstractContextManager[None]:
    """Silence Polygraphy's logger inside the block, for all threads."""
    return _QUIET


def _silent() -> AbstractContextManager[object]:
    from polygraphy.logger import G_LOGGER

    verbosity: AbstractContextManager[object] = G_LOGGER.verbosity(G_LOGGER.CRITICAL + 10)
    return verbosity


_QUIET = SharedContext(_silent)
