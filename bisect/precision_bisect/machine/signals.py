"""Signals that a command answers while it works, and streams that are lost meanwhile."""

import os
import signal
import stat
from abc import ABC, abstractmethod
from contextlib import suppress
from types import FrameType
from typing import IO, Any, Self

from precision_bisect.machine.stopping import stopped_by_signals


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, as they are answered here; a script may raise a plain one by itself."""


class AnswersSignals(ABC):
    """Answers Ctrl-C, SIGTERM and SIGHUP inside its block, but for those that are ignored.

    A terminal that is gone (SIGHUP: a closed laptop) ends nothing.
    """

    def __init__(self) -> None:
        self._former: dict[int, Any] = {}
        self._listening = stopped_by_signals()

    def __enter__(self) -> Self:
        handled: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self.interrupt)
        if hasattr(signal, "SIGHUP"):  # not every system has it
            handled[signal.SIGHUP] = lambda *_: let_go()
        for number, handler in handled.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, handler)
        self._listening.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.__exit__(None, None, None)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @abstractmethod
    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Answer Ctrl-C or SIGTERM."""


def signal_name(number: int) -> str:
    """Return a signal by its name and what it means, as `SIGSEGV (Segmentation fault)`."""
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


def kill_group(pid: int) -> None:
    """Kill a process that leads a session, and what it has started there."""
    with suppress(OSError, AttributeError):  # not every system has groups
        os.killpg(pid, signal.SIGKILL)


def let_go() -> None:
    """Turn the standard streams that are terminals away from them: they are gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # By number: a script of the user's may have taken the place of sys.stdout for the moment.
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)


def turn_away(stream: IO[str]) -> None:
    """Have a stream whose reader has gone write to nowhere, what it still holds included."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
