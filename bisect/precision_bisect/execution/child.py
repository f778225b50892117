"""What runs inside a child process, which the driver's process calls, and how one ended.

Standard output and error go to a file, so that what native libraries print before they die is
evidence. Ctrl-C is handled by the driver alone. A child ends itself when its driver is gone.
"""

import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.execution.evaluator_spec import Made, Survey, survey
from precision_bisect.machine.process_ends import how_ended
from precision_bisect.machine.stopping import kill_group
from precision_bisect.machine.user_scripts import first_line, let_scripts_exit
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.speed.kernel_times import KernelTimes
from precision_bisect.trial import Outcome, Proposal, TrialStatus

if TYPE_CHECKING:
    from precision_bisect.backends.inspection.shown_tensors import ShownTensor

_CODE = re.compile(r"\((-?\d+)\)")
_VMSTAT = Path("/proc/vmstat")
TAIL_BYTES = 256 * 1024
"""Bytes of the end of a log that are kept: the last words tell most. A bound."""


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


def terminated(report: str, oom_kills_before: int, printed: bytes = b"") -> Death:
    """Return the death that the pool reports as text, with exit codes in brackets.

    `printed` is what the process wrote.
    """
    match = _CODE.search(report)
    code = int(match[1]) if match else 0
    # The kernel's counter is for the whole system: another process may have been killed at the
    # same time. Hence `retry`.
    if -code == signal.SIGKILL and oom_kills() > oom_kills_before:
        message = "its process was killed while the system ran out of memory"
        return Death(TrialStatus.OUT_OF_MEMORY, message, retry=True)
    message = f"its process {how_ended(code, printed)}"
    return Death(TrialStatus.CRASHED, message, retry=True)


def tail(log: Path) -> bytes:
    """Return the end of a log. Raises OSError."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        # A child that wrote on after its log was emptied leaves NULs in front: its offset stayed.
        return stream.read().strip(b"\0")


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


# Seconds between two looks for the driver: a limit on how long a child outlives it.
_WATCH_S = 0.5
_evaluator: Evaluator | None = None
_looked: Made | None = None


def begin(log: Path) -> None:
    """Prepare this process; `log` is the file for what it prints."""
    let_scripts_exit()
    # A terminal sends Ctrl-C to the whole foreground group; the driver decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A process group of its own: compilers that this process starts are killed with it.
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    # Whoever calls may have no streams, whose numbers files then get.
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        if stream is not None:
            # Text that is still in Python's buffers belongs to the old streams.
            stream.flush()
        os.dup2(file, number)
        # A file that had this number already is closed in processes that begin here.
        os.set_inheritable(number, True)
    if file > 2:
        os.close(file)
    # Taken now: once the driver is gone, the parent is another process.
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def load_evaluator(spec: Path, work: Path) -> None:
    """Make the evaluator of a pickled spec, which may raise; `work` is a folder for its files.

    What this process was asked before about the backend of the same run serves the evaluator.
    """
    global _evaluator, _looked
    looked, _looked = _looked, None
    _evaluator = pickle.loads(spec.read_bytes()).evaluator(work, looked)


def pick(options: Options, work: Path) -> tuple[str, str]:
    """Return the name of the backend that the options ask for, and why it is the one."""
    # Imported here: it brings in ONNX Runtime.
    from precision_bisect.backends.backend_plugin import pick_backend

    del work
    return pick_backend(options)


def backend_facts(spec: Path, work: Path) -> Survey:
    """Return what the backend of a pickled spec says of itself."""
    global _looked
    _looked = pickle.loads(spec.read_bytes()).made(work)
    return survey(_looked.backend)


def times(spec: Path, plans: Sequence[Plan], work: Path) -> Sequence[KernelTimes]:
    """Return how long the kernels of plans take, on the backend of a pickled spec.

    Raises RefusedError where it cannot tell. What this process has looked at serves it.
    """
    looked = _looked
    kernel_times: Sequence[KernelTimes] = pickle.loads(spec.read_bytes()).kernel_times(
        plans, looked, work
    )
    return kernel_times


def show(
    spec: Path, plan: Plan, feeds: Sequence[Sample], work: Path
) -> "Sequence[Sequence[ShownTensor]]":
    """Return what the engine of a plan shows of each feed, on the backend of a pickled spec.

    Raises RefusedError where it shows nothing, or cannot be built.
    """
    # Imported here: ONNX is of no use to a child that only builds.
    from precision_bisect.backends.inspection.shown_tensors import shown_by

    global _looked
    if _looked is None:
        _looked = pickle.loads(spec.read_bytes()).made(work)
    return shown_by(_looked.backend, plan, feeds)


def evaluate_here(proposal: Proposal) -> Outcome:
    """Evaluate a proposal; an exception that no backend should raise is an outcome, too.

    Raises the PrecisionBisectErrors that end a run.
    """
    # Imported here: a child starts with as little as possible, so that it can report its own
    # death.
    from precision_bisect.errors import PrecisionBisectError

    if _evaluator is None:
        raise RuntimeError("evaluate before load")
    try:
        return _evaluator(proposal)
    except BaseException as error:
        # An interrupt is one that was raised by hand: the driver alone answers Ctrl-C.
        if isinstance(error, PrecisionBisectError) and not isinstance(error, MemoryError):
            raise
        traceback.print_exc()
        return raised_outcome(error)


def _end_with(driver: int) -> None:
    """End this process once its parent is no longer the driver."""
    # `prctl(PR_SET_PDEATHSIG)` would act on the end of the thread that started the child.
    while os.getppid() == driver:
        time.sleep(_WATCH_S)
    kill_group(os.getpid())
