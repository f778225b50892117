"""Work of native libraries on foreign files in a copy of this process: it may die of them.

What a library cannot do with a file it mostly says by an exception; an abort or a segmentation
fault would end this process without a line. The copy shares all that is in memory, so it costs
some ten milliseconds, and hands back what comes of the work, or the exception.
"""

import ctypes
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, TypeVar

from precision_bisect.errors import ModelError
from precision_bisect.machine.process_ends import how_ended, tell_faults, what_helps
from precision_bisect.machine.stopping import stoppable, tell_of_calls

R = TypeVar("R")
_PR_SET_PDEATHSIG = 1
_BEGUN, _ENDED, _ANSWER = b"(", b")", b"="
# Bytes of what a library printed that are passed on, or searched for its last words.
_PRINTED = 2**16
_OTHERWISE = "export the model otherwise, or try another version of onnxruntime and onnx"
_ALLOWED = ContextVar("_ALLOWED", default=False)


@contextmanager
def copies_allowed() -> Iterator[None]:
    """Let this thread work in copies inside the block, which is for a process of our own.

    Other threads that are inside a library meanwhile leave its locks and memory half changed in
    the copy, which dies of that.
    """
    token = _ALLOWED.set(True)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def in_copy(work: Callable[[], R], what: str) -> R:
    """Return what `work` returns, or raise what it raises; `what` it is stands in an error.

    Both must be picklable. Outside of `copies_allowed`, on systems other than Linux, and where no
    process may be started, it is done here. Raises ModelError where the copy dies, and Stopped
    where a call in it is ended.
    """
    if sys.platform != "linux" or not _ALLOWED.get():
        return work()
    try:
        # In memory: there may be no folder to write to.
        memory = os.memfd_create("printed")
    except OSError:
        return work()
    with os.fdopen(memory, "w+b") as printed:
        try:
            child, stream = _fork(work, printed)
        except OSError:
            return work()
        with stream:
            try:
                content = _answer(stream, partial(_kill, child))
            except BaseException:
                _kill(child)
                _exit_code(child)
                raise
        code = _exit_code(child)
        words = _said(printed)
    try:
        outcome, failed = pickle.loads(content or b"")
    except (EOFError, pickle.UnpicklingError) as error:
        message = f"{what}: its process {how_ended(code, words)}"
        raise ModelError(message, what_helps(code, _OTHERWISE)) from error
    with suppress(OSError):
        os.write(2, words)
    if failed:
        raise outcome
    result: R = outcome
    return result


class Standby:
    """A copy of this process, made before it opens anything, that waits for one piece of work.

    A process that is started anew imports for a second first. `printed` and `complained` are files
    of what the work prints. Raises OSError where no copy can be made; its end is that of this one.
    """

    def __init__(self, work: Callable[..., None]) -> None:
        with ExitStack() as held:
            files = [os.fdopen(os.memfd_create(name), "w+b") for name in ("printed", "said")]
            self.printed: IO[bytes]
            self.complained: IO[bytes]
            self.printed, self.complained = map(held.enter_context, files)
            place, given = os.pipe()
            self._given = held.enter_context(os.fdopen(given, "wb", buffering=0))
            try:
                self._child, stream = _fork(partial(self._wait, place, work), self.complained)
            finally:
                # Only the copy reads: once it is gone, nobody does.
                os.close(place)
            held.enter_context(stream)
            self._stream = stream
            # A terminal's signals are for who waits; done here, it holds once this returns.
            os.setpgid(self._child, self._child)
            self._held = held.pop_all()
        self.returncode: int | None = None

    def _wait(self, place: int, work: Callable[..., None]) -> None:
        """Do the work in the copy, once it is given."""
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(self.printed.fileno(), 1)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        with os.fdopen(place, "rb") as stream:
            arguments = pickle.load(stream)
        try:
            work(*arguments)
            sys.stdout.flush()
        except Exception:  # as Python ends a process
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def begin(self, *arguments: object) -> None:
        """Have the copy do its work with these arguments, which can be pickled.

        Raises BrokenPipeError where something has ended it meanwhile.
        """
        self._given.write(pickle.dumps(arguments))

    def wait(self, limit_s: float) -> int:
        """Wait for the copy's end; return its exit code. Raises TimeoutExpired."""
        deadline = time.monotonic() + limit_s
        while self.returncode is None:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._stream], [], [], left)[0]:
                raise subprocess.TimeoutExpired("a copy", limit_s)
            if not self._stream.read(2**16):
                self.returncode = _exit_code(self._child)
        return self.returncode

    def close(self) -> None:
        """End the copy."""
        if self.returncode is None:
            _kill(self._child)
            self.returncode = _exit_code(self._child)
        self._held.close()


class Running(Protocol):
    """What has begun: a fresh process, or a copy of this one from before it opened anything."""

    printed: IO[bytes]
    complained: IO[bytes]
    returncode: int | None

    def wait(self, limit_s: float) -> int: ...

    def close(self) -> None: ...


class Fresh:
    """A process of this Python that begins at once; see `Running`."""

    def __init__(self, words: Sequence[str], work: Path, gpu: str | None = None) -> None:
        own = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        with ExitStack() as held:
            self.printed: IO[bytes]
            self.complained: IO[bytes]
            self.printed, self.complained = (
                held.enter_context(tempfile.TemporaryFile(dir=work)) for _ in range(2)
            )
            self._process = subprocess.Popen(
                # -P: not to import what lies in the folder that it is started in.
                [sys.executable, "-P", *words],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=self.printed,
                stderr=self.complained,
                # Ctrl-C ends what is explained meanwhile, not the check.
                process_group=0,
            )
            self._held = held.pop_all()
        self.returncode: int | None = None

    def wait(self, limit_s: float) -> int:
        self.returncode = self._process.wait(limit_s)
        return self.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._held.close()


def can_stand_by() -> bool:
    """Tell whether this thread may make a copy that waits."""
    return sys.platform == "linux" and _ALLOWED.get()


def _fork(work: Callable[[], Any], printed: IO[bytes]) -> tuple[int, IO[bytes]]:
    """Start the copy; return its process, and where its answer comes from. Raises OSError."""
    ours, theirs = os.pipe()
    parent = os.getpid()
    # No signal meets the copy before it has let go of this process's handlers.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Threads of this process hold no lock of the libraries meanwhile.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _work(work, parent, theirs, printed.fileno())
    except OSError:
        os.close(ours)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        os.close(theirs)
    return child, os.fdopen(ours, "rb", buffering=0)


def _work(work: Callable[[], Any], parent: int, theirs: int, printed: int) -> NoReturn:
    """Do the work in the copy, which ends with it."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        # A terminal's Ctrl-C is answered by who waits.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(printed, 2)
        tell_faults()
        tell_of_calls(lambda begins: os.write(theirs, _BEGUN if begins else _ENDED))
        if os.getppid() == parent:
            with os.fdopen(theirs, "wb", buffering=0) as stream:
                content = memoryview(_pickled(work))
                stream.write(_ANSWER)
                while content:  # one call writes 2 GiB at most
                    content = content[stream.write(content) :]
    finally:
        os._exit(0)


def _pickled(work: Callable[[], Any]) -> bytes:
    """Return the result of the work, or the exception, and which of both it is."""
    try:
        return pickle.dumps((work(), False), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever it is, it is raised where the work was wanted
        try:
            return pickle.dumps((error, True))
        except Exception:
            return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), True))


def _answer(stream: IO[bytes], kill: Callable[[], None]) -> bytes | None:
    """Return the answer; None where the copy ends without one.

    Each call there that has a limit of its own is one here, and so is all that goes on there.
    """
    try:
        with stoppable(kill, alone=False):
            while (mark := _mark(stream)) != _ANSWER:
                if mark == _BEGUN:
                    with stoppable(kill):
                        _mark(stream)
    except EOFError:
        return None
    content = BytesIO()
    while chunk := stream.read(2**20):
        content.write(chunk)
    return content.getvalue() or None


def _mark(stream: IO[bytes]) -> bytes:
    """Return what the copy is at. Raises EOFError where it is gone."""
    if not (mark := stream.read(1)):
        raise EOFError
    return mark


def _exit_code(child: int) -> int:
    """Wait for the copy's end; return its exit code, 0 where the system tells it to nobody."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # whoever began this process has it ignore SIGCHLD
        return 0


def _kill(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _said(printed: IO[bytes]) -> bytes:
    """Return what the copy has printed, its end where that is much."""
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - _PRINTED))
    return printed.read()
