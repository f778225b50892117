"""A job's process: the main command in a session of its own, which does not outlive the batch.

As a module, `python -m precision_bisect.batch.process PARENT ARGUMENTS` is that process. The
session keeps a terminal's Ctrl-C away from it: the batch alone passes interrupts on, each once.
On Linux the kernel kills it when the batch ends in whatever way (prctl(2), PR_SET_PDEATHSIG).
"""

import math
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from precision_bisect.errors import RunFolderError

_PR_SET_PDEATHSIG = 1
COMMAND = "$ precision-bisect "
"""How a log begins what one process says."""
GRACE_S = 60.0
"""How long a job may take to end after each request, before the next, harder one."""
_TICK_S = 0.5
"""A signal is answered after so long at most."""


def start(arguments: Sequence[str], folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start the main command in `folder`; the command and what it prints are appended to `log`.

    Raises RunFolderError where it cannot be started.
    """
    # -P: like the installed command, not to import what lies beside the jobs file.
    program = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
    environment = {key: text for key, text in os.environ.items() if key != "FORCE_COLOR"}
    try:
        with log.open("ab") as stream:
            stream.write(f"{COMMAND}{shlex.join(arguments)}\n".encode(errors="surrogateescape"))
            stream.flush()
            return subprocess.Popen(
                [*program, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise RunFolderError(
            f"cannot start a job that writes {log}: {error.strerror}",
            "make space or memory, then go on with --resume",
        ) from error


def wait(child: "subprocess.Popen[bytes]", left_s: float | None) -> bool:
    """Wait for a job's end and return whether it had to be told to end, after `left_s` seconds.

    It is asked by SIGTERM, which writes the best so far; again, which gives up the trial in
    flight; then it is killed.
    """
    for number, limit_s in (
        (None, math.inf if left_s is None else left_s),
        (signal.SIGTERM, GRACE_S),
        (signal.SIGTERM, GRACE_S),
    ):
        if number is not None:
            child.send_signal(number)
        if _ends(child, limit_s):
            return number is not None
    child.kill()
    child.wait()
    return True


def _ends(child: "subprocess.Popen[bytes]", within_s: float) -> bool:
    """Wait for a job's end; tell whether it came in time.

    In short waits: a signal that comes just before a wait is answered only after it.
    """
    end = time.monotonic() + within_s
    while (left_s := end - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(_TICK_S, left_s))
            return True
    return child.poll() is not None


def clear(child: "subprocess.Popen[bytes]") -> None:
    """Kill what a job that has ended left in its session, such as a worker that holds a GPU."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; nothing elsewhere than on Linux."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


if __name__ == "__main__":
    _end_with(int(sys.argv.pop(1)))
    runpy.run_module("precision_bisect", run_name="__main__", alter_sys=True)
