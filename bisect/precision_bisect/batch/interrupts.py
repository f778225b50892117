"""Ctrl-C and SIGTERM while jobs run: the running one ends with its best so far, no other follows.

What is passed on is SIGTERM: a process that a script starts in the background ignores SIGINT, and
so do its children. Where the terminal is closed (SIGHUP) the jobs go on without it.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from precision_bisect.watched import let_go

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes that the batch is to end and passes that on to the running job, each time once more.

    Used as a context manager. The second time a job gives up its trial in flight.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say
        self._child: subprocess.Popen[bytes] | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        handled: dict[int, Any] = dict.fromkeys(_NUMBERS, self._take)
        if hasattr(signal, "SIGHUP"):  # not every system has it
            handled[signal.SIGHUP] = _hang_up
        for number, handler in handled.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @contextmanager
    def passed_to(self, child: "subprocess.Popen[bytes]") -> Iterator[None]:
        """Pass interrupts on to this process inside the block, one that came before it, too."""
        self._child = child
        try:
            if self.asked:
                child.terminate()
            yield
        finally:
            self._child = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._child is not None:
            self._child.terminate()
        with suppress(RuntimeError):  # the signal came while a line was being written
            self._say("interrupted; waiting for the running job to end with its best so far")


def _hang_up(number: int, frame: FrameType | None) -> None:
    let_go()
