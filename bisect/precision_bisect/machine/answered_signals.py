"""Signals that are answered: what they stop, and how a run hears of them.

A signal stops the calls that would keep Python from answering it: at once where the main thread is
in the call, after a grace or by a second signal where another thread is.
"""

import math
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from precision_bisect.machine.interrupts import answer_between_imports
from precision_bisect.machine.stopping import Call, Stopped, let_go, look_at_clock, stop_calls

GRACE_S = 10.0
"""So long other threads may take to end their calls after a first signal."""
CPU_LIMIT: int | None = getattr(signal, "SIGXCPU", None)  # not every system has it
_LEAST_LEFT_S, _SHARE_LEFT = 5, 0.1
"""CPU seconds, and share of the limit, that are left for the result: the larger of both. A bound;
at the hard limit the system kills without a word."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Have each signal that Python answers stop the calls that would keep it from that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    former = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    block = _Block()
    threading.Thread(target=_listen, args=(ours, block), daemon=True).start()
    try:
        yield
    finally:
        block.left = time.monotonic()
        signal.set_wakeup_fd(former, warn_on_full_buffer=False)
        os.close(theirs)


@dataclass(eq=False, slots=True)
class _Block:
    """A block whose calls signals stop, and when it was left: what begins later is not its."""

    left: float = math.inf

    def stop(self, of: int | None = None) -> None:
        """Stop its calls, or those of a thread."""

        def is_ours(call: Call) -> bool:
            return call.begun <= self.left and of in (None, call.thread)

        stop_calls(is_ours, "interrupted")


def _listen(pipe: int, block: _Block) -> None:
    """Answer signals until the other end of the pipe is closed."""
    main, heard = threading.main_thread().ident, 0
    while numbers := os.read(pipe, 1):
        if numbers[0] not in (signal.SIGINT, signal.SIGTERM, CPU_LIMIT):
            continue
        heard += 1
        block.stop(main)
        # Who asks twice does not wait for calls of other threads, nor is there time to at a limit.
        if heard > 1 or numbers[0] == CPU_LIMIT:
            block.stop()
        else:
            # A call of another thread may be near its end, and its trial worth keeping.
            timer = threading.Timer(GRACE_S, block.stop)
            timer.daemon = True
            timer.start()
    with suppress(OSError):
        os.close(pipe)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, as they are answered here; a script may raise a plain one by itself."""

    raised = 0

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        Interrupted.raised += 1


@contextmanager
def code_of_others() -> Iterator[None]:
    """Run code of others, which may catch all: what is to end it then ends what called it.

    Raises Stopped and Interrupted, whatever became of them inside.
    """
    raised = Interrupted.raised
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        raise
    except BaseException:
        _heed(raised)
        raise
    _heed(raised)


def _heed(raised: int) -> None:
    # In the main thread alone: elsewhere a trial may go on to its end.
    if raised != Interrupted.raised and threading.current_thread() is threading.main_thread():
        raise Interrupted("interrupted")
    look_at_clock()


class AnswersSignals(ABC):
    """Answers Ctrl-C, SIGTERM and SIGHUP inside its block, but for those that are ignored.

    A terminal that is gone (SIGHUP: a closed laptop) ends nothing. A limit of CPU time is as
    SIGTERM, some seconds before it is reached, in processes that are begun inside, too.
    """

    def __init__(self) -> None:
        self._former: dict[int, Any] = {}
        self._listening = stopped_by_signals()
        self._cpu_limits: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        handled: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self._answer)
        if hasattr(signal, "SIGHUP"):  # not every system has it
            handled[signal.SIGHUP] = lambda *_: let_go()
        if CPU_LIMIT is not None:
            handled[CPU_LIMIT] = self._answer_once
            self._cpu_limits = _lower_cpu_limit()
        for number, handler in handled.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, handler)
        self._listening.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.__exit__(None, None, None)
        if self._cpu_limits is not None:
            _set_cpu_limits(self._cpu_limits)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def cpu_limit(self, number: int) -> str:
        """Return what the limit of CPU time is where a signal tells of it, "" for others."""
        if number != CPU_LIMIT or self._cpu_limits is None:
            return ""
        return f"the CPU time limit of {self._cpu_limits[0]} s (ulimit -t)"

    def _answer_once(self, number: int, frame: FrameType | None) -> None:
        # It comes again with each second, and behind the block, where the limit is as it was.
        signal.signal(number, signal.SIG_IGN)
        self._former.pop(number, None)
        self._answer(number, frame)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        answer_between_imports(self.interrupt, number, frame)

    @abstractmethod
    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Answer Ctrl-C or SIGTERM."""


def _lower_cpu_limit() -> tuple[int, int] | None:
    """Have SIGXCPU come before the hard limit of CPU time; return both limits, None without."""
    import resource

    soft, hard = limits = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == resource.RLIM_INFINITY:
        return None
    if hard != resource.RLIM_INFINITY:
        latest = hard - max(_LEAST_LEFT_S, round(_SHARE_LEFT * hard))
        _set_cpu_limits((max(1, min(soft, latest)), hard))
    return limits


def _set_cpu_limits(limits: tuple[int, int]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, limits)
