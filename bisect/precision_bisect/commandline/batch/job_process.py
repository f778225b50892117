"""A job's process: the main command in a session of its own, which does not outlive the batch.

The session keeps a terminal's Ctrl-C away from it. What the batch passes on is SIGTERM: where a
script starts the batch in the background both ignore SIGINT.
"""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from precision_bisect.commandline.batch.batch_record import MESSAGE, Job, JobState
from precision_bisect.errors import ExitCode, RunFolderError, printable, shortened
from precision_bisect.machine.signals import AnswersSignals, kill_group, signal_name
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import RESULT

_PR_SET_PDEATHSIG = 1
JOB_GRACE_S = 60.0
"""How long a job may take to end after each request, before the next, harder one."""
_NO_LIMIT_S = 1e9
"""With a limit `Popen.wait` looks up now and then, so that no signal goes unnoticed."""
_TAIL = 4096
"""Bytes of a log in which its last line is looked for."""
_PROMPT = "$ precision-bisect "
_ENDINGS = frozenset(ExitCode) - {ExitCode.USAGE, ExitCode.NOT_OBSERVABLE}


class Stop(AnswersSignals):
    """Notes Ctrl-C and SIGTERM, and passes each on to the running job.

    The first has it end with its best so far, the second gives up its trial in flight.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self.asked = False
        self.child: subprocess.Popen[bytes] | None = None
        self._say = say

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Note it, pass it on, and say so."""
        self.asked = True
        if self.child is not None:
            self.child.terminate()
        with suppress(RuntimeError):  # the signal came while a line was being written
            self._say("interrupted; waiting for the running job to end with its best so far")


def run_job(job: Job, base: Path, left_s: float | None, stop: Stop) -> Job:
    """Run a job in the folder `base`, for so many seconds at most; return how it ended."""
    begun, former = time.monotonic(), _stamp(job)
    try:
        stop.child = child = _start(job, base)
    except OSError as error:
        message = f"cannot start a job that writes {job.log}: {error.strerror}"
        return replace(job, status=JobState.FAILED, exit_code=ExitCode.USAGE, message=message)
    if stop.asked:
        child.terminate()
    wait(child, left_s)
    stop.child = None
    if child.returncode < 0:
        kill_group(child.pid)  # what it left in its session, such as a worker that holds a GPU
    ended = _outcome(job, child.returncode, fresh=_stamp(job) != former)
    return replace(ended, seconds=round(job.seconds + time.monotonic() - begun, 3))


def _start(job: Job, base: Path) -> "subprocess.Popen[bytes]":
    """Start the main command; it and what it prints are appended to the log. Raises OSError."""
    _, *words = job.command
    environment = {key: text for key, text in os.environ.items() if key != "FORCE_COLOR"}
    with Path(job.log).open("ab") as stream:
        stream.write(f"{_PROMPT}{shlex.join(words)}\n".encode(errors="surrogateescape"))
        stream.flush()
        return subprocess.Popen(
            # -P: like the installed command, not to import what lies beside the jobs file.
            [sys.executable, "-P", "-m", "precision_bisect", *words],
            cwd=base,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_ends_with(os.getpid()) if sys.platform == "linux" else None,
        )


def _ends_with(batch: int) -> Callable[[], None]:
    """Return what has the kernel kill a new process when the batch ends, in whatever way."""
    system = ctypes.CDLL(None)

    def ask() -> None:
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != batch:  # it was gone before
            os._exit(1)

    return ask


def wait(child: "subprocess.Popen[bytes]", left_s: float | None) -> None:
    """Wait for a job's end; after `left_s` seconds it is asked to, twice, and then killed."""
    for limit_s in (_NO_LIMIT_S if left_s is None else left_s, JOB_GRACE_S, JOB_GRACE_S):
        with suppress(subprocess.TimeoutExpired):
            child.wait(limit_s)
            return
        child.terminate()
    child.kill()
    child.wait()


def _stamp(job: Job) -> tuple[int, int] | None:
    """Return what changes whenever the result of a run is written; None where there is none."""
    with suppress(OSError):
        found = (Path(job.run_folder) / RESULT).stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _outcome(job: Job, code: int, *, fresh: bool) -> Job:
    """Return the record of a job whose process has ended with this code.

    Python ends with exit code 1 after an exception that nobody caught, too, so a code counts as an
    ending only beside a `result.json` that was written meanwhile, which is `fresh`.
    """
    said = replace(job, exit_code=code, message="", kept=None, candidates=None)
    if fresh and code in _ENDINGS:
        with suppress(RunFolderError):
            saved = read_saved(Path(job.run_folder))
            kept = len(saved.result.kept) if saved.answered else None
            # An answer that ends with this code has failed a gate, which said so last.
            gated = saved.answered and code == ExitCode.NO_PLAN
            return replace(
                said,
                status=saved.result.status,
                message=_last_line(job) if gated else "",
                kept=kept,
                candidates=saved.result.candidates,
            )
    if code == ExitCode.INTERRUPTED:
        return replace(said, status=Status.INTERRUPTED)
    return replace(said, status=JobState.FAILED, message=_why(job, code))


def _why(job: Job, code: int) -> str:
    """Return why a job failed, on one line: mostly what it said last."""
    if code < 0:
        memory = ", as where memory runs out" if code == -signal.SIGKILL else ""
        return f"killed by {signal_name(-code)}{memory}"
    how = "" if code in (ExitCode.USAGE, ExitCode.INTERNAL) else f"exit code {code}: "
    return f"{how}{_last_line(job)}"


def _last_line(job: Job) -> str:
    """Return what the job said last, without control characters."""
    text = ""
    with suppress(OSError):
        text = Path(job.log).read_bytes()[-_TAIL:].decode(errors="replace").rstrip()
    last = text.rpartition("\n")[2].removeprefix("precision-bisect: ")
    if not last or last.startswith(_PROMPT):
        return "it said nothing"
    return printable(shortened(last, MESSAGE))
