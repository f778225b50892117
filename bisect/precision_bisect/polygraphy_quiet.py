"""Polygraphy without its own log lines: verdicts are reported here, once."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Polygraphy's logger inside the block."""
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 10):
        yield
