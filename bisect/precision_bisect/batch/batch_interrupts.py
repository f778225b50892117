"""Ctrl-C and SIGTERM while jobs run: the running one ends with its best so far, no other follows.

What is passed on is SIGTERM: a process that a script starts in the background ignores SIGINT, and
so do its children. Where the terminal is closed (SIGHUP) the jobs go on without it.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from precision_bisect.machine.signals import AnswersSignals


class Interrupts(AnswersSignals):
    """Notes that the batch is to end and passes that on to the running job, each time once more.

    Used as a context manager. The second time a job gives up its trial in flight.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self.asked = False
        self._say = say
        self._child: subprocess.Popen[bytes] | None = None

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

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Note it, say so, and pass it on."""
        self.asked = True
        if self._child is not None:
            self._child.terminate()
        with suppress(RuntimeError):  # the signal came while a line was being written
            self._say("interrupted; waiting for the running job to end with its best so far")
