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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, Any, TypeAlias

from precision_bisect.commandline.batch.batch_record import MESSAGE, Job, JobState
from precision_bisect.errors import ExitCode, RunFolderError, printable, shortened
from precision_bisect.machine.answered_signals import AnswersSignals
from precision_bisect.machine.process_ends import how_ended
from precision_bisect.machine.stopping import kill_group
from precision_bisect.runs.comparing.changes import NO_BASELINE
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import RESULT

_PR_SET_PDEATHSIG = 1
JOB_GRACE_S = 60.0
"""How long a job may take to end after each request, before the next, harder one."""
# So that no signal goes unnoticed, nor a clock that was set, or a machine that slept.
_LOOK_S = 10.0
# Bytes of a log in which its last line is looked for.
_TAIL = 4096
_PROMPT = "$ precision-bisect "
_CHECK = "precision_bisect.commandline.batch.job_check"
Left: TypeAlias = Callable[[], float]
"""Tells how many seconds are left by the clock on the wall; infinity without a limit."""
OTHER_MODEL = 10
"""What `job_check` ends with where the run folder holds a run of another model."""
_ENDINGS = frozenset(ExitCode) - {ExitCode.USAGE, ExitCode.NOT_OBSERVABLE}


class Stop(AnswersSignals):
    """Notes Ctrl-C and SIGTERM, and passes each on to the running jobs.

    The first has them end with their best so far, the second gives up their trials in flight.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self.asked = False
        self.children: set[subprocess.Popen[bytes]] = set()
        self.say = say

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Note it, pass it on, and say so."""
        self.asked = True
        for child in tuple(self.children):
            child.terminate()
        by = f" by {limit}" if (limit := self.cpu_limit(number)) else ""
        with suppress(RuntimeError):  # the signal came while a line was being written
            self.say(f"interrupted{by}; waiting for what runs to end with its best so far")


def run_job(job: Job, base: Path, left_s: Left, stop: Stop, gpu: str | None) -> Job:
    """Run a job in the folder `base` until no time is left; return how it ended.

    It sees no other GPU than the one that is given, if any.
    """
    begun, former = time.monotonic(), _stamp(job)
    try:
        child = _start(job, base, gpu)
    except OSError as error:
        message = f"cannot start a job that writes {job.log}: {error.strerror}"
        return replace(job, status=JobState.FAILED, exit_code=ExitCode.USAGE, message=message)
    cut_short = _attend(child, left_s, stop)
    ended = _outcome(job, child.returncode, fresh=_stamp(job) != former)
    if ended.finished and not ended.message:
        ended = replace(ended, message=_lacking_baseline(job, base))
    seconds = round(job.seconds + time.monotonic() - begun, 3)
    return replace(ended, cut_short=cut_short or ended.cut_short, seconds=seconds)


def check_job(job: Job, base: Path, left_s: Left, stop: Stop) -> Job:
    """Read a job's model and samples; return the job, which has failed where that fails.

    Its status also tells a run folder that holds a run of another model. Nothing is known where
    the time is up, and after an interrupt; what else ends it the job tells.
    """
    code, output = 0, b""
    with TemporaryFile() as printed, suppress(OSError):
        words, nowhere = job.command[2:], subprocess.DEVNULL
        child = _process(_CHECK, words, base, stdout=printed, stderr=nowhere)
        _attend(child, left_s, stop)
        code, output = child.returncode, _tail(printed)
    ended = stop.asked or left_s() <= 0
    if code == OTHER_MODEL and not ended:
        return replace(job, status=JobState.OTHER_MODEL)
    if ended or not (code < 0 or code == ExitCode.USAGE):
        return job
    return replace(job, status=JobState.FAILED, exit_code=code, message=_why(output, code))


def _attend(child: "subprocess.Popen[bytes]", left_s: Left, stop: Stop) -> bool:
    """Wait for a process's end, and have interrupts reach it; tell whether it was asked to end."""
    stop.children.add(child)
    if stop.asked:
        child.terminate()
    asked = wait(child, left_s) or stop.asked
    stop.children.discard(child)
    if child.returncode < 0:
        kill_group(child.pid)  # what it left in its session, such as a worker that holds a GPU
    return asked


def _start(job: Job, base: Path, gpu: str | None) -> "subprocess.Popen[bytes]":
    """Start the main command; it and what it prints are appended to the log. Raises OSError."""
    _, *words = job.command
    with Path(job.log).open("ab") as stream:
        stream.write(f"{_PROMPT}{shlex.join(words)}\n".encode(errors="surrogateescape"))
        stream.flush()
        return _process(
            "precision_bisect", words, base, gpu, stdout=stream, stderr=subprocess.STDOUT
        )


def _process(
    module: str, words: Sequence[str], base: Path, gpu: str | None = None, **streams: Any
) -> "subprocess.Popen[bytes]":
    environment = {key: text for key, text in os.environ.items() if key != "FORCE_COLOR"}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    return subprocess.Popen(
        # -P: like the installed command, not to import what lies beside the jobs file.
        [sys.executable, "-P", "-m", module, *words],
        cwd=base,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_ends_with(os.getpid()) if sys.platform == "linux" else None,
        **streams,
    )


def _ends_with(batch: int) -> Callable[[], None]:
    """Return what has the kernel kill a new process when the batch ends, in whatever way."""
    system = ctypes.CDLL(None)

    def ask() -> None:
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != batch:  # it was gone before
            os._exit(1)

    return ask


def wait(child: "subprocess.Popen[bytes]", left_s: Left) -> bool:
    """Wait for a job's end; once no time is left it is asked to, twice, and then killed.

    Tells whether it was asked.
    """
    while (left := left_s()) > 0:
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(left, _LOOK_S))
            return False
    for _ in range(2):
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(JOB_GRACE_S)
            return True
    child.kill()
    child.wait()
    return True


def _stamp(job: Job) -> tuple[int, int] | None:
    """Return what changes whenever the result of a run is written; None where there is none."""
    with suppress(OSError):
        file_stat = (Path(job.run_folder) / RESULT).stat()
        return file_stat.st_ino, file_stat.st_mtime_ns
    return None


def _outcome(job: Job, code: int, *, fresh: bool) -> Job:
    """Return the record of a job whose process has ended with this code.

    Python ends with exit code 1 after an exception that nobody caught, too, so a code counts as an
    ending only beside a `result.json` that was written meanwhile, which is `fresh`.
    """
    record = replace(job, exit_code=code, message="", kept=None, candidates=None, deploy="")
    if fresh and code in _ENDINGS:
        with suppress(RunFolderError):
            saved = read_saved(Path(job.run_folder))
            kept = len(saved.result.kept) if saved.answered else None
            # An answer that ends with this code has failed a gate, which said so last.
            gated = saved.answered and code == ExitCode.NO_PLAN
            return replace(
                record,
                status=saved.result.status,
                message=_last_line(_printed(job)) if gated or saved.result.cut_short else "",
                kept=kept,
                candidates=saved.result.candidates,
                deploy=saved.result.to_deploy,
                cut_short=saved.result.cut_short,
            )
    if code == ExitCode.INTERRUPTED:
        return replace(record, status=Status.INTERRUPTED)
    return replace(record, status=JobState.FAILED, message=_why(_printed(job), code))


def _lacking_baseline(job: Job, base: Path) -> str:
    """Return what is to be known of a job with a baseline that is not there; "" of others."""
    words = (word.partition("=") for word in job.command)
    named = [value for flag, _, value in words if flag == "--baseline"]
    missing = [path for path in named if not os.path.lexists(base / path)]
    return NO_BASELINE.format(missing[0]) if missing else ""


def _why(output: bytes, code: int) -> str:
    """Return why a process failed, on one line: mostly what it said last."""
    said = "" if code < 0 else _last_line(output)
    if code in (ExitCode.USAGE, ExitCode.INTERNAL):
        return said
    return ": ".join(filter(None, (f"its process {how_ended(code)}", said)))


def _printed(job: Job) -> bytes:
    with suppress(OSError), Path(job.log).open("rb") as stream:
        return _tail(stream)
    return b""


def _tail(stream: IO[bytes]) -> bytes:
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
    return stream.read()


def _last_line(output: bytes) -> str:
    """Return what a process said last, without control characters."""
    text = output.decode(errors="replace").rstrip()
    last = text.rpartition("\n")[2].removeprefix("precision-bisect: ")
    if not last or last.startswith(_PROMPT):
        return "it said nothing"
    return printable(shortened(last, MESSAGE))
