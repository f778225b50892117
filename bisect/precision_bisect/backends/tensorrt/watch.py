"""Around one build: its end, at a deadline or by a signal that ends runs, and its timing cache.

A build is one call into C++. Python would raise KeyboardInterrupt in the next callback of the
build, where the bindings print and swallow it. So the interrupt is noted, the build is cancelled
by its progress monitor, and the interrupt is raised once the build has returned.
"""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Self, TypeAlias

from precision_bisect.machine.answered_signals import CPU_LIMIT

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_NUMBERS = count()


class BuildWatch:
    """A context around one build. `limit_s` is in seconds, None for no limit.

    A library without progress monitors (TensorRT 8.6) finishes its build first. So does a single
    step of any library.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._interrupted: int | None = None
        self._outer: dict[int, _Handler] = {}

    def __enter__(self) -> Self:
        # Python allows signal handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            for number in filter(None, (signal.SIGINT, signal.SIGTERM, CPU_LIMIT)):
                outer = signal.getsignal(number)
                # SIG_DFL and SIG_IGN are no functions: then nobody wants to handle the signal.
                if callable(outer):
                    self._outer[number] = outer
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, outer in self._outer.items():
            signal.signal(number, outer)
        if self._interrupted is not None:
            self._outer[self._interrupted](self._interrupted, None)

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def monitor(self, module: ModuleType) -> Any:
        """Return a progress monitor that cancels the build, None where the library has none."""
        if not hasattr(module, "IProgressMonitor"):
            return None
        go_on = self._go_on

        class Monitor(module.IProgressMonitor):  # type: ignore[name-defined,misc]
            """Answers after every step whether to go on; remembers nothing else."""

            def __init__(self) -> None:
                module.IProgressMonitor.__init__(self)

            def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
                """Note nothing."""

            def phase_finish(self, phase: str) -> None:
                """Note nothing."""

            def step_complete(self, phase: str, step: int) -> bool:
                """Return whether to go on."""
                return go_on()

        return Monitor()

    def _go_on(self) -> bool:
        return self._interrupted is None and not self.expired

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._interrupted = number


@contextmanager
def private(shared: Path | None, *, afresh: bool = False) -> Iterator[Path | None]:
    """Yield a copy of the cache for one build; it becomes the shared one if the build succeeds.

    Polygraphy locks the file against other processes, but not against other threads, and writes it
    in place. A build `afresh` begins without timings, and leaves the shared ones as they are. Of
    builds side by side the last one to end wins; what the others timed is then timed again.
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
