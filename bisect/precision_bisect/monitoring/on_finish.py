"""A command of the user's that is called once a run has written its result."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from precision_bisect.errors import UsageError

TIMEOUT_S = 600.0


def words(command: str) -> tuple[str, ...]:
    """Return a command line as the words that a shell would make of it. Raises UsageError."""
    try:
        found = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(
            f"--on-finish {command!r}: {str(error).lower()}", "quote it as for a shell"
        ) from error
    if not found or not found[0]:
        raise UsageError("--on-finish names no command", "leave it out")
    return found


def call(command: Sequence[str], result: Path, timeout_s: float = TIMEOUT_S) -> str | None:
    """Run the command, without a shell, with the result's path as its last argument.

    What it prints goes to standard error. Returns what went wrong, in one line: it cannot be run,
    it fails, or it is ended with all that it started, since it takes longer than `timeout_s`
    seconds or the user presses Ctrl-C.
    """
    called = f"--on-finish {command[0]}"
    try:
        process = subprocess.Popen(
            [*command, str(result.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=_stderr(),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{called} cannot be run: {getattr(error, 'strerror', None) or error}"
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"{called} was ended after {timeout_s:g} s"
    except KeyboardInterrupt:
        _end(process)
        return f"{called} was interrupted"
    return None if code == 0 else f"{called} {_failed(code)}"


def _stderr() -> int:
    """Return the file that is standard error, or one that swallows what is written."""
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.fileno()
    return subprocess.DEVNULL


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and what it started."""
    if os.name == "posix":
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _failed(code: int) -> str:
    if code > 0:
        return f"failed with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
