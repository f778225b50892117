"""The timing cache that all builds of a run share.

Polygraphy locks the file against other processes, but not against other threads, and writes it in
place. So each build has a copy of its own, which then replaces the shared file as a whole.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_NUMBERS = count()


@contextmanager
def private(shared: Path | None, *, afresh: bool = False) -> Iterator[Path | None]:
    """Yield a copy of the cache for one build; it becomes the shared one if the build succeeds.

    A build `afresh` begins without timings, and leaves the shared ones as they are. Of builds side
    by side the last one to end wins; what the others timed is then timed again.
    """
    if shared is None:
        yield None
        return
    own = shared.with_name(f"{shared.name}.{next(_NUMBERS)}")
    if not afresh:
        with suppress(FileNotFoundError):
            shutil.copyfile(shared, own)
    try:
        yield own
        if not afresh:
            with suppress(FileNotFoundError):
                own.replace(shared)
    finally:
        own.unlink(missing_ok=True)
        own.with_name(f"{own.name}.lock").unlink(missing_ok=True)
