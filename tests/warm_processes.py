"""Processes that begin at once: forked from one that has imported what they need and run nothing.

The last check of an answer is a fresh Python, whose imports take as long as the whole search of a
small model: here it is such a fork. `exports/test_recheck.py` takes a Python of its own.
"""

import atexit
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, SubprocessError
from typing import IO, Any

__all__ = ["DEVNULL", "Forked", "Popen", "SubprocessError"]

CHECK = "precision_bisect.exports.recheck"
SHARED = ("precision_bisect.api", "precision_bisect.pipeline.ladder.climb", CHECK)
LATE = ("onnxruntime", "polygraphy.comparator", "polygraphy.json")
"""What the others import as late as they can."""


class Forked:
    """The `main` of a module with these words, in a process of its own.

    It has the folder, the mask and the environment of this one, or those given. What it prints is
    lost where no files take it.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.returncode: int | None = None
        os.umask(mask := os.umask(0o077))
        place = str(Path.cwd()), mask, dict(os.environ if env is None else env)
        request = pickle.dumps((module, words, sys.path, *place))
        there, here = os.pipe()
        with Path(os.devnull).open("w") as nowhere:
            files = [(each or nowhere).fileno() for each in (stdout, stderr)]
            socket.send_fds(_origin(), [request], [*files, here])
        os.close(here)
        self._ending = os.fdopen(there)
        self.pid = int(self._ending.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ending, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._ending.readline())
            self._ending.close()
        return self.returncode

    def kill(self) -> None:
        """End it, if it is still there."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def Popen(command: list[str], **about: Any) -> Any:
    """Begin a process as `subprocess.Popen` does, the check as a fork."""
    if command[1:4] != ["-P", "-m", CHECK]:
        return subprocess.Popen(command, **about)
    return Forked(CHECK, command[4:], **{key: about[key] for key in ("stdout", "stderr", "env")})


@cache
def _origin() -> socket.socket:
    """Start what is forked; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    origin = subprocess.Popen(command, pass_fds=[theirs.fileno()], process_group=0)
    theirs.close()
    atexit.register(origin.wait)
    atexit.register(ours.close)
    return ours


def serve(requests: socket.socket) -> None:
    """Fork for each request; a child of that child is the process, and its end is told."""
    for module in (*SHARED, *LATE):
        import_module(module)
    while True:
        request, files, *_ = socket.recv_fds(requests, 1 << 20, 3)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG if request else 0)[0]:
                pass
        if not request:
            return
        if os.fork():
            for each in files:
                os.close(each)
        elif process := os.fork():
            os.write(files[-1], b"%d\n" % process)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            os.write(files[-1], b"%d\n" % code)
            os._exit(0)
        else:
            requests.close()
            be(files, *pickle.loads(request))


def be(
    files: Sequence[int],
    module: str,
    words: Sequence[str],
    path: list[str],
    folder: str,
    mask: int,
    environment: Mapping[str, str],
) -> None:
    """Be the process: with its own streams, place and environment, to its end."""
    os.setpgid(0, 0)
    for stream, file in zip((1, 2), files, strict=False):
        os.dup2(file, stream)
    for each in files:
        os.close(each)
    os.chdir(folder)
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    tempfile.tempdir = None
    code = 1
    try:
        import_module(module).main(*words)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
