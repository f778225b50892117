"""How a child process ended, in the words of a trial's outcome."""

import re
import signal
from pathlib import Path

from precision_bisect.machine.signals import signal_name
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.trial import Outcome, TrialStatus

_CODE = re.compile(r"\((-?\d+)\)")
_VMSTAT = Path("/proc/vmstat")


class Death(Exception):
    """A child process that was lost, or had to be ended, during a call.

    `outcome` has the status and one line for people. `retry` tells that the same call may succeed
    in another process, because something else may have been the cause.
    """

    def __init__(self, status: TrialStatus, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.outcome = Outcome(status=status, message=message)
        self.retry = retry


def raised_outcome(error: BaseException) -> Outcome:
    """Return the outcome of a trial with an exception that no backend should raise."""
    if isinstance(error, MemoryError):
        what = first_line(error)
        return Outcome(status=TrialStatus.OUT_OF_MEMORY, message=f"out of memory: {what}")
    return Outcome(status=TrialStatus.RAISED, message=first_line(error))


def unreadable() -> Death:
    """Return the death of a child whose answer is no answer."""
    message = "its process gave an answer that cannot be read"
    return Death(TrialStatus.CORRUPTED, message, retry=True)


def terminated(report: str, oom_kills_before: int) -> Death:
    """Return the death that the pool reports as text, with exit codes in brackets."""
    match = _CODE.search(report)
    code = int(match[1]) if match else 0
    # 0 stands for no code: some other end of the process, such as `_exit`.
    if code >= 0:
        how = f"exit code {code}" if match else "without a word"
        return Death(TrialStatus.CRASHED, f"its process ended: {how}", retry=True)
    name = signal_name(-code)
    # The kernel's counter is for the whole system: another process may have been killed at the
    # same time. Hence `retry`.
    if -code == signal.SIGKILL and oom_kills() > oom_kills_before:
        message = "its process was killed while the system ran out of memory"
        return Death(TrialStatus.OUT_OF_MEMORY, message, retry=True)
    return Death(TrialStatus.CRASHED, f"its process died of {name}", retry=True)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 where unknown."""
    try:
        for line in _VMSTAT.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        pass
    return 0
