"""The last check of an answer, begun as a fork of a process that has its imports already.

The check is a fresh Python, whose imports take as long as the whole search of a small model. It
imports nothing that a run has opened; neither has the process that is forked here, once for each
check. What a Python of its own changes is tested in `exports/test_recheck.py`.
"""

import atexit
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, SubprocessError
from typing import IO, Any

__all__ = ["DEVNULL", "Popen", "SubprocessError"]


class Forked:
    """What `subprocess.Popen` is for the check: a process that is waited for, or killed."""

    def __init__(self, words: list[str], stdout: IO[str], stderr: IO[str], **about: Any) -> None:
        self.returncode: int | None = None
        there, here = os.pipe()
        state = (words, about["env"], str(Path.cwd()), _umask())
        # Each request is a message of its own.
        socket.send_fds(_server(), [pickle.dumps(state)], [stdout.fileno(), stderr.fileno(), here])
        os.close(here)
        self._ending = os.fdopen(there)
        self.pid = int(self._ending.readline())

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ending, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._ending.readline())
            self._ending.close()

    def kill(self) -> None:
        """End it, if it is still there."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def Popen(words: list[str], **about: Any) -> Any:
    """Begin a process as `subprocess.Popen` does, the check as a fork."""
    if words[:4] == [sys.executable, "-P", "-m", "precision_bisect.exports.recheck"]:
        return Forked(words[4:], **about)
    return subprocess.Popen(words, **about)


def _umask() -> int:
    os.umask(mask := os.umask(0o077))
    return mask


@cache
def _server() -> socket.socket:
    """Start what is forked; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], process_group=0)
    theirs.close()
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def serve(requests: socket.socket) -> None:
    """Fork for each request; a child of that child is the check, and its end is told."""
    import onnxruntime  # noqa: F401
    import polygraphy.comparator
    import polygraphy.json  # noqa: F401

    from precision_bisect.exports import recheck

    while True:
        state, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 3)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG if state else 0)[0]:
                pass
        if not state:
            return
        if os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        stdout, stderr, ending = descriptors
        if check := os.fork():
            os.write(ending, b"%d\n" % check)
            code = os.waitstatus_to_exitcode(os.waitpid(check, 0)[1])
            os.write(ending, b"%d\n" % code)
            os._exit(0)
        words, environment, folder, umask = pickle.loads(state)
        os.setpgid(0, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.chdir(folder)
        os.umask(umask)
        os.environ.clear()
        os.environ.update(environment)
        code = 1
        try:
            recheck.main(*words)
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
