"""A batch: the jobs of a file in order, each in a process and a run folder of its own.

A job is begun with --resume, which begins a run or goes on with it, so a batch that was killed at
any point goes on where it was. `batch.json` says that a job runs before its process exists.
"""

import math
import re
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from precision_bisect.commandline.arguments.batch_flags import BatchOptions
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.commandline.batch.batch_record import (
    BATCH,
    JUNIT,
    SUMMARY,
    Batch,
    Job,
    JobState,
    junit,
    markdown,
    read_batch,
)
from precision_bisect.commandline.batch.job_process import Stop, check_job, run_job
from precision_bisect.commandline.batch.jobs import read_jobs
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.machine.plain_files import remove_debris
from precision_bisect.machine.threads import awaited, side_by_side
from precision_bisect.runs.belonging import RUN, Claim, has_keys, is_run
from precision_bisect.runs.locking import RunLock, now
from precision_bisect.runs.runfolder import RESULT, RunFolder


def plan_batch(options: BatchOptions) -> Batch:
    """Return the batch of a file, with nothing started. Raises a PrecisionBisectError."""
    until = None if options.until is None else parse_until(options.until, time.time())
    jobs = read_jobs(options.jobs_file, options.folder)
    for job in jobs if any(options.places) else ():
        if to_options(run_parser().read(job.command[2:])).gpus:
            wrong = f"job {job.name}: workers and --at-once both name GPUs"
            raise UsageError(wrong, "leave one out")
    return Batch(
        jobs_file=str(options.jobs_file.absolute()),
        started=now(),
        until=None if until is None else datetime.fromtimestamp(until, UTC).isoformat(),
        jobs=jobs,
    )


def checked(batch: Batch, places: Sequence[str | None], stop: Stop) -> Batch:
    """Return the batch; a job whose model or samples cannot be read has failed already."""
    base = Path(batch.jobs_file).parent

    def check(job: Job) -> Job:
        is_known = job.finished or stop.asked
        return job if is_known else check_job(job, base, partial(_left_s, batch), stop)

    return replace(batch, jobs=[*side_by_side(check, batch.jobs, len(places))])


def dry_run(options: BatchOptions, say: Callable[[str], None]) -> Batch:
    """Return the batch of a file, checked, with nothing started. Raises as `plan_batch` does."""
    with Stop(say) as stop:
        batch = checked(plan_batch(options), options.places, stop)
        batch.interrupted = stop.asked
    return batch


def as_shell(batch: Batch) -> str:
    """Return a line for a shell per job."""
    folder = shlex.quote(str(Path(batch.jobs_file).parent))
    return "".join(f"(cd {folder} && {shlex.join(job.command)})\n" for job in batch.jobs)


def run_batch(
    options: BatchOptions, say: Callable[[str], None], show: Callable[[str], None]
) -> Batch:
    """Run the jobs of a file and return how each ended; `batch.json` says the same at any moment.

    `say` gets lines of progress, `show` a line for each job once it is known how it ends. Raises a
    PrecisionBisectError, with nothing started, for a file or a folder that cannot work.
    """
    batch = plan_batch(options)
    if options.resume:
        read_batch(options.folder)  # one that is damaged is told as such
    with RunLock(options.folder, _claim(batch.jobs)) as lock:
        _refuse_what_is_there(options, batch.jobs)
        folder = lock.open(overwrite=False, rungs=False)
        remove_debris(folder.path, (BATCH, SUMMARY, JUNIT))
        if options.overwrite:
            _clear(folder.path, batch.jobs)
        former = read_batch(folder.path)
        if former is not None:
            jobs_by_name = {job.name: job for job in former.jobs}
            batch.jobs = [_taken_up(job, jobs_by_name.get(job.name)) for job in batch.jobs]
        with Stop(say) as stop:
            batch = checked(batch, options.places, stop)
            batch.jobs = [_begun_anew(job, say) for job in batch.jobs]
            _run_all(batch, folder, options.places, stop, show)
    return batch


def _run_all(
    batch: Batch,
    folder: RunFolder,
    places: Sequence[str | None],
    stop: Stop,
    show: Callable[[str], None],
) -> None:
    """Run the jobs that are not finished, one in each place, until something ends the batch."""
    base, say, noting = Path(batch.jobs_file).parent, stop.say, Lock()
    free: SimpleQueue[str | None] = SimpleQueue()
    for gpu in places:
        free.put(gpu)

    def note(number: int, job: Job) -> None:
        with noting:
            batch.jobs[number] = job
            _save(batch, folder, say)

    def attend(number: int) -> None:
        job, here = batch.jobs[number], f"[{number + 1}/{len(batch.jobs)}]"
        if job.finished:
            show(f"{job}; not run again")
        elif job.status == JobState.FAILED:
            show(str(job))
        elif _left_s(batch) <= 0:
            say(f"{here} {job.name}: the time is up; it is left for --resume")
        elif not stop.asked:
            gpu = free.get()
            say(f"{here} {job.name} begins; its output goes to {job.log}")
            try:
                note(number, replace(job, status=JobState.RUNNING, message=""))
                note(number, run_job(job, base, partial(_left_s, batch), stop, gpu))
            finally:  # who waits for a place must not wait for ever
                free.put(gpu)
            show(str(batch.jobs[number]))

    with ThreadPoolExecutor(len(places)) as pool:
        for _ in awaited(pool, attend, range(len(batch.jobs))):
            pass
    batch.interrupted, batch.ended = stop.asked, now()
    _save(batch, folder, say)


def _save(batch: Batch, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Write `batch.json` and the summaries; where that fails the run folders are what counts."""
    try:
        folder.write(BATCH, batch.to_json())
        folder.write(SUMMARY, markdown(batch))
        folder.write(JUNIT, junit(batch))
    except RunFolderError as error:
        say(f"Warning: {error.one_line()}")


def _left_s(batch: Batch) -> float:
    """Return the seconds until the limit by the clock on the wall, infinity for no limit."""
    if batch.until is None:
        return math.inf
    return datetime.fromisoformat(batch.until).timestamp() - time.time()


def _taken_up(job: Job, before: Job | None) -> Job:
    """Return what to go on with: a finished job whose command and model are the same stays."""
    if before is None:
        return job
    same = (before.command, before.model_stamp) == (job.command, job.model_stamp)
    if same and before.finished and (Path(job.run_folder) / RESULT).is_file():
        return before
    return replace(job, seconds=before.seconds)


def _begun_anew(job: Job, say: Callable[[str], None]) -> Job:
    """Return a job as it is; where its folder holds a run of another model, without that run."""
    if job.status != JobState.OTHER_MODEL:
        return job
    say(f"{job.name}: the model has changed, so it is searched again")
    with RunLock(Path(job.run_folder)) as lock:
        lock.open(overwrite=True, rungs=False)
    return replace(job, status=JobState.WAITING, seconds=0.0)


def _claim(jobs: Sequence[Job]) -> Claim:
    """Return what a batch itself writes into its folder."""
    names = [BATCH, SUMMARY, JUNIT, *(Path(job.log).name for job in jobs)]
    return Claim(
        names=lambda: names,
        known=lambda place: has_keys(place / BATCH, ("schema", "jobs_file", "jobs")),
    )


def _refuse_what_is_there(options: BatchOptions, jobs: Sequence[Job]) -> None:
    """Raise RunFolderError where a folder holds a batch or a run that nobody spoke of.

    Also where a job would replace what is somebody else's.
    """
    for job in jobs:
        RUN.check(Path(job.run_folder))
    if options.resume or options.overwrite:
        return
    hint = "go on with --resume, replace it with --overwrite, or choose another --out"
    if (options.folder / BATCH).exists():
        raise RunFolderError(f"{options.folder} already holds a batch", hint)
    for job in jobs:
        if is_run(Path(job.run_folder)):
            raise RunFolderError(f"job {job.name}: {job.run_folder} already holds a run", hint)


def _clear(folder: Path, jobs: Sequence[Job]) -> None:
    """Remove what former runs left, the record first: without it nothing half removed counts."""
    for name in (BATCH, SUMMARY, JUNIT):
        (folder / name).unlink(missing_ok=True)
    for job in jobs:
        Path(job.log).unlink(missing_ok=True)
        if is_run(Path(job.run_folder)):
            with RunLock(Path(job.run_folder)) as lock:
                lock.open(overwrite=True, rungs=False)


def parse_until(text: str, begun: float) -> float:
    """Return when `06:00`, the next such local time, or an ISO date and time is.

    Both are seconds since the epoch, as `begun`. Raises UsageError.
    """
    today = datetime.fromtimestamp(begun)
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", text):
            hour, minute = map(int, text.split(":"))
            at = today.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0)
            # A day is added to the local time, not to seconds: where clocks change in that night,
            # 06:00 stays 06:00.
            later = at if at.timestamp() > begun else at + timedelta(days=1)
            return later.timestamp()
        ends = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"cannot read the time {text!r}", "write 06:00, or a date and time as 2030-01-31T06:00"
        ) from error
    if ends <= begun:
        raise UsageError(f"--until {text} is past", "give a time to come")
    return ends
