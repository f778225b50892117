"""Calls into libraries that may not return by themselves, and what ends them: signals, limits.

Python answers a signal between its own instructions, so a call that does not come back is never
interrupted. Here such calls are registered with what stops them. A deadline does, a limit for each
call, and a signal: see `answered_signals`.

Code of others looks at no clock, such as a check that sleeps. Stopped is raised in it, by a signal
of this process to its main thread.
"""

import math
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import IO

from precision_bisect.errors import ExitCode, PrecisionBisectError, UsageError
from precision_bisect.machine.interrupts import answer_between_imports

STOPPED_AFTER_S = 2.0
"""What ends sooner is not stopped by the deadline: it is soon recorded, and nothing lost."""
_UNHEEDED_S = 0.5
"""So long after the time is over, and again, what the main thread is at is ended. A bound: what
looks at the clock has ended by then."""
_ASLEEP_S = 1.0
"""A look that comes so much later was not possible before. A bound: looks are 0.1 s apart."""
_WAKES = getattr(signal, "SIGVTALRM", None)  # not every system has it


class Stopped(BaseException):
    """The run is to end: its time is over, or a signal has stopped a call of a thread.

    It is no Exception, since what a library or code of others raises is answered in many places,
    and this is to pass there. Out of `limited` it is a RunStopped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RunStopped(PrecisionBisectError):
    """The run ended by its limits before it could write a result."""

    exit_code = ExitCode.BUDGET


class TimedOut(PrecisionBisectError):
    """One call took longer than a call may."""


STOPS = (Stopped, TimedOut)
"""What breaks off what goes on, where what stands already is enough."""


class Looks:
    """Looks at the clock again and again, which tell when this process slept, as after Ctrl-Z."""

    def __init__(self) -> None:
        self._latest = time.monotonic()

    def asleep_s(self) -> float:
        """Return the seconds since the last look, 0 where it went on meanwhile."""
        before, self._latest = self._latest, time.monotonic()
        passed = self._latest - before
        return passed if passed > _ASLEEP_S else 0.0


@dataclass(eq=False, slots=True)
class Call:
    """One call, how it is stopped, and what has stopped it; `alone` it has a limit, too.

    What it was `asleep` for with all of the process, in seconds, does not count in that limit.
    """

    stop: Callable[[], None]
    alone: bool
    thread: int = field(default_factory=threading.get_ident)
    begun: float = field(default_factory=time.monotonic)
    asleep_s: float = 0.0
    why: str = ""
    late: bool = False


class _Limits:
    """The calls at work and the times that they have; one for the process, as runs are."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.changed = threading.Condition()
        self.begun: float | None = None
        self.deadline: float | None = None
        self.each_s: float | None = None
        self.over: Callable[[], bool] | None = None
        self.taken = threading.Lock()
        self.wakes_main = False
        self.tell: Callable[[bool], object] | None = None

    def stop(self, which: Callable[[Call], bool], why: str, *, late: bool = False) -> None:
        """Stop those of the calls."""
        with self.changed:
            for call in [candidate for candidate in self.calls if which(candidate)]:
                call.why, call.late = why, late
                call.stop()

    def watch(self, ended: threading.Event, total: str, per_call: str) -> None:
        """Stop what takes too long, until told that nobody limits any more."""
        heeded, looks = math.inf, Looks()
        while not ended.wait(0.05):
            now = time.monotonic()
            if asleep_s := looks.asleep_s():
                with self.changed:
                    for call in self.calls:
                        call.asleep_s += asleep_s
            if self.deadline is not None and now >= self.deadline:
                begun = now - STOPPED_AFTER_S
                self.stop(lambda call: call.begun < begun, total)  # noqa: B023
            if not time_is_over():
                heeded = math.inf
            else:
                self.stop(lambda _: True, total)
                heeded = min(heeded, now)
                if now >= heeded + _UNHEEDED_S:
                    self.wake_main()
                    heeded = now
            if self.each_s is not None:
                begun = now - self.each_s
                self.stop(
                    lambda call: call.alone and call.begun + call.asleep_s < begun,  # noqa: B023
                    per_call,
                    late=True,
                )

    def wake_main(self) -> None:
        """Have the main thread look at the clock, if it answers: a signal ends its sleep, too."""
        with self.changed:
            if self.wakes_main and _WAKES is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, _WAKES)


_LIMITS = _Limits()
_SETS_LIMITS = (__file__, contextmanager.__code__.co_filename)


def time_is_over() -> bool:
    """Tell whether nothing is to go on."""
    over = _LIMITS.over  # another thread may set it meanwhile
    return over is not None and over()


def look_at_clock(waiting_for: str = "") -> None:
    """Raise Stopped where the time is over: for loops that take long between calls.

    It names what such a loop is `waiting_for`, if that may be to blame.
    """
    if time_is_over():
        waiting = f", waiting for {waiting_for}" if waiting_for else ""
        raise Stopped(f"the time was up{waiting}")


@contextmanager
def stoppable(stop: Callable[[], None], *, alone: bool = True) -> Iterator[None]:
    """Have what goes on inside the block end where it must, by `stop`, from another thread.

    What the block raises once it was stopped becomes Stopped, or TimedOut by the limit for each
    call `alone`, which is for inferences: what prepares them has only that of the run.
    """
    look_at_clock()
    call = Call(stop, alone)
    with _LIMITS.changed:
        _LIMITS.calls.add(call)
    # The process that waits for this copy counts the limit of a call, which begins and ends here.
    if alone and _LIMITS.tell is not None:
        _LIMITS.tell(True)
    try:
        yield
    except Exception as error:
        if call.late:
            hint = "give it more time, or inputs and limits that let it end"
            raise TimedOut(call.why, hint) from error
        if call.why:
            raise Stopped(call.why) from error
        raise
    finally:
        with _LIMITS.changed:
            _LIMITS.calls.discard(call)
        if alone and _LIMITS.tell is not None:
            _LIMITS.tell(False)


def stop_calls(which: Callable[[Call], bool], why: str) -> None:
    """Stop those of the calls at work."""
    _LIMITS.stop(which, why)


def tell_of_calls(tell: Callable[[bool], object]) -> None:
    """Have `tell` called as calls begin (True) and end, where another process limits them."""
    _LIMITS.tell = tell
    _LIMITS.changed = threading.Condition()
    _LIMITS.over = None


def running_s() -> float:
    """Return the seconds since a search in this process began, what it had to import included."""
    return 0.0 if _LIMITS.begun is None else time.monotonic() - _LIMITS.begun


@contextmanager
def limited(
    total_s: float | None, each_s: float | None, begun: float | None = None
) -> Iterator[None]:
    """Give the calls inside the block so many seconds together, and each of them so many.

    The search has `begun` then, by `time.monotonic`, or begins now.
    Raises UsageError where another block is at work in this process: it would be limited, too.
    Raises RunStopped where the time ends and nothing in the block answers that.
    """
    if not _LIMITS.taken.acquire(blocking=False):
        raise UsageError(
            "another search is at work in this process",
            "run one after the other, or each in a process of its own",
        )
    _LIMITS.begun = time.monotonic() if begun is None else begun
    try:
        if total_s is None and each_s is None:
            yield
        else:
            with _watched(total_s, each_s, _LIMITS.begun):
                yield
    except Stopped as stopped:
        raise RunStopped(stopped.message, "give it more, then go on with --resume") from stopped
    finally:
        _LIMITS.begun = None
        _LIMITS.taken.release()


@contextmanager
def _watched(total_s: float | None, each_s: float | None, begun: float) -> Iterator[None]:
    _LIMITS.deadline = None if total_s is None else begun + total_s
    _LIMITS.each_s = each_s
    ended = threading.Event()
    messages = (
        f"--max-time of {total_s or 0:g} s is spent",
        f"one inference takes longer than the --trial-timeout of {each_s or 0:g} s",
    )
    threading.Thread(target=_LIMITS.watch, args=(ended, *messages), daemon=True).start()
    try:
        with _main_thread_woken():
            yield
    finally:
        ended.set()
        _LIMITS.deadline = _LIMITS.each_s = None


@contextmanager
def _main_thread_woken() -> Iterator[None]:
    """Have the main thread look at the clock when it is woken, if the block is run by it."""
    if _WAKES is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(_WAKES, partial(answer_between_imports, _look))
    _LIMITS.wakes_main = True
    try:
        yield
    finally:
        # No signal is on its way any more: without a handler it would end the process.
        with _LIMITS.changed:
            _LIMITS.wakes_main = False
        # None: it was no handler of Python's, and cannot come back.
        signal.signal(_WAKES, former or signal.SIG_DFL)


def _look(number: int, frame: FrameType | None) -> None:
    """Look at the clock, but where what is over is just being set."""
    del number
    if frame is None or frame.f_code.co_filename not in _SETS_LIMITS:
        look_at_clock()


@contextmanager
def until(over: Callable[[], bool]) -> Iterator[None]:
    """Have no call inside the block begin, and none go on, once the time is `over`.

    Many calls that are short each look at the clock so, too.
    """
    former, _LIMITS.over = _LIMITS.over, over
    try:
        yield
    finally:
        _LIMITS.over = former


@contextmanager
def past_deadline() -> Iterator[None]:
    """Let calls inside the block go on past the deadline: what is left to do is to conclude."""
    former, _LIMITS.deadline = _LIMITS.deadline, None
    try:
        yield
    finally:
        _LIMITS.deadline = former


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
