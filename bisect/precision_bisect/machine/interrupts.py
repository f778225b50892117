"""When a signal is answered: between imports.

This is imported before all else, and so imports next to nothing.
"""

import atexit
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

# When this process began: its own command counts what it has to import.
_command_begun = time.monotonic()

Handler: TypeAlias = Callable[[int, FrameType | None], object]

# An import that takes longer is interrupted all the same. A bound.
_LONGEST_S = 10.0
_AGAIN_S = 0.02
_held: dict[int, Handler] = {}
_held_since = 0.0


def command_begun() -> float:
    """Return when the latest command began, by `time.monotonic`."""
    return _command_begun


def begin_command() -> None:
    """Have a command begin now: one that Python calls, in a process that may be old."""
    global _command_begun
    _command_begun = time.monotonic()


def answer_between_imports(answer: Handler, number: int, frame: FrameType | None) -> None:
    """Call `answer` for a signal, once no module is being imported where it came.

    An exception inside an import may be swallowed, keep the lock of the import for ever, or leave
    a native library half made, of which the process dies. Where a system has no timers none waits.
    Of several that wait Ctrl-C is answered first: what it raises leaves the others unanswered.
    """
    global _held_since
    if not _imports(frame) or not hasattr(signal, "setitimer"):
        answer(number, frame)
        return
    wait, _held[number] = not _held, answer
    if wait:
        _held_since = time.monotonic()
        former = signal.getsignal(signal.SIGALRM) or signal.SIG_DFL
        timer = signal.getitimer(signal.ITIMER_REAL)

        def again(_: int, later: FrameType | None) -> None:
            if _imports(later) and time.monotonic() - _held_since < _LONGEST_S:
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
                return
            signal.signal(signal.SIGALRM, former)
            signal.setitimer(signal.ITIMER_REAL, *timer)
            waiting = sorted(_held.items())
            _held.clear()
            for held, held_answer in waiting:
                held_answer(held, later)

        # Where all is done before it comes again, it is too late.
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _imports(frame: FrameType | None) -> bool:
    """Tell whether a frame, or one that called it, imports a module."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Answer Ctrl-C as Python does, and never inside an import."""
    answer_between_imports(signal.default_int_handler, number, frame)
