"""A command of the user's that is called once a run has written its result."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from precision_bisect.errors import UsageError
from precision_bisect.machine.process_ends import how_ended
from precision_bisect.machine.stopping import kill_group

TIMEOUT_S = 600.0


def command_words(command: str) -> tuple[str, ...]:
    """Return a command line as the words that a shell would make of it. Raises UsageError."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(
            f"--on-finish {command!r}: {str(error).lower()}", "quote it as for a shell"
        ) from error
    if not words or not words[0]:
        raise UsageError("--on-finish names no command", "leave it out")
    return words


def check_command(command: Sequence[str]) -> None:
    """Raise UsageError for a command that is not there before a run that would call it."""
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"--on-finish {command[0]}: there is no such command", "give its path, or one on PATH"
        )


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
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        kill_group(process.pid)
        # Where a system has no groups.
        process.kill()
        process.wait()
        late = isinstance(error, subprocess.TimeoutExpired)
        return f"{called} was {f'ended after {timeout_s:g} s' if late else 'interrupted'}"
    return f"{called}: its process {how_ended(code)}" if code else None


def _stderr() -> int:
    """Return the file that is standard error, or one that swallows what is written."""
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.fileno()
    return subprocess.DEVNULL
