"""The course of a batch: one job after the other, each with all the workers.

A job is begun with --resume, which begins a run or goes on with it, so a batch that was killed at
any point goes on where it was. `batch.json` says that a job runs before its process exists.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from precision_bisect.batch.batch_interrupts import Interrupts
from precision_bisect.batch.batch_record import BATCH, BatchRecord, JobRecord, State
from precision_bisect.batch.jobs import Job
from precision_bisect.batch.outcome import outcome, result_stamp, spent_s
from precision_bisect.batch.process import clear, start, wait
from precision_bisect.batch.table import clock_time, headline
from precision_bisect.batch.until import Deadline
from precision_bisect.errors import ExitCode, RunFolderError
from precision_bisect.run_folder.locking import now
from precision_bisect.run_folder.runfolder import RunFolder

_USED_UP = 0.9
"""A job that took so much of its share before its budget was spent would use more."""


class BatchCourse:
    """Runs jobs that are not finished and keeps `record`, in memory and in the folder.

    `base` is where jobs run; `say` gets one line when a job begins and one when it ends.
    """

    def __init__(
        self,
        record: BatchRecord,
        folder: RunFolder,
        base: Path,
        deadline: Deadline,
        say: Callable[[str], None],
    ) -> None:
        self._record = record
        self._folder = folder
        self._base = base
        self._deadline = deadline
        self._say = say

    def run(self, jobs: Sequence[Job], *, stop_on_error: bool) -> None:
        """Run the jobs; those whose share of the time was too short again while any is left."""
        self._save()
        waiting: Sequence[Job] = [job for job in jobs if not self._record.jobs[job.name].finished]
        with Interrupts(self._say) as interrupts:
            while waiting and self._record.stopped_by is None:
                waiting = self._round(waiting, interrupts, stop_on_error=stop_on_error)
        self._end()

    def _round(
        self, waiting: Sequence[Job], interrupts: Interrupts, *, stop_on_error: bool
    ) -> Sequence[Job]:
        """Run each job once, until something stops the batch; return those that lacked time."""
        short = []
        for place, job in enumerate(waiting):
            share_s = self._deadline.share_s(len(waiting) - place)
            if share_s == 0:
                self._record.stopped_by = ExitCode.BUDGET
                break
            if self._run_job(job, share_s, interrupts):
                short.append(job)
            verdict = self._record.jobs[job.name].verdict
            if stop_on_error and verdict in (ExitCode.USAGE, ExitCode.INTERNAL):
                self._record.stopped_by = verdict
            if interrupts.asked:
                self._record.stopped_by = ExitCode.INTERRUPTED
            if self._record.stopped_by is not None:
                break
        return short

    def _run_job(self, job: Job, share_s: float | None, interrupts: Interrupts) -> bool:
        """Run one job and return whether more time would take it further."""
        before = self._record.jobs[job.name]
        limit = self._limit(job, share_s)
        most = "" if share_s is None else f", at most {clock_time(share_s)}"
        self._say(f"{self._place(job)} begins{most}; its output goes to {before.log}")
        self._note(replace(before, status=State.RUNNING, message=""))
        started = time.monotonic()
        try:
            ended = self._process(job, limit, interrupts)
        except RunFolderError as error:
            ended = replace(
                before,
                status=State.FAILED,
                exit_code=ExitCode.USAGE,
                message=error.one_line(),
            )
        took_s = time.monotonic() - started
        self._note(replace(ended, seconds=round(before.seconds + took_s, 3)))
        self._say(f"{self._place(job)} {headline(self._record.jobs[job.name])}")
        used_up = share_s is not None and took_s >= _USED_UP * share_s
        return ended.exit_code == ExitCode.BUDGET and bool(limit) and used_up

    def _process(self, job: Job, limit: Sequence[str], interrupts: Interrupts) -> JobRecord:
        """Run a job's process to its end and return what it came to. Raises RunFolderError."""
        before = self._record.jobs[job.name]
        stamp = result_stamp(job.run_folder)
        *flags, _, model = job.command
        added = (*limit, f"--out={job.run_folder}", "--resume")
        child = start((*flags, *added, "--", model), self._base, Path(before.log))
        with interrupts.passed_to(child):
            timed = wait(child, self._deadline.left_s())
        if child.returncode < 0:
            clear(child)
        fresh = result_stamp(job.run_folder) != stamp
        ended = outcome(before, child.returncode, fresh=fresh, asked=timed or interrupts.asked)
        if timed and ended.status == State.INTERRUPTED:
            return replace(ended, status=State.TIME_UP)
        return ended

    def _limit(self, job: Job, share_s: float | None) -> Sequence[str]:
        """Return the flag for the share of the time, if the job's own limit is not smaller."""
        if share_s is None:
            return ()
        own_s = job.options.max_time_s
        limit_s = spent_s(job.run_folder) + share_s  # a resumed run's time counts all of it
        return () if own_s is not None and own_s <= limit_s else (f"--max-time={limit_s:.3f}",)

    def _place(self, job: Job) -> str:
        names = list(self._record.jobs)
        return f"[{names.index(job.name) + 1}/{len(names)}] {job.name}"

    def _note(self, job: JobRecord) -> None:
        self._record.jobs[job.name] = job
        self._save()

    def _end(self) -> None:
        for name, job in self._record.jobs.items():
            if job.status == State.WAITING:
                self._record.jobs[name] = replace(job, status=State.NOT_STARTED)
        self._record.ended = now()
        self._save()

    def _save(self) -> None:
        """Write `batch.json`; where that fails the run folders are what counts."""
        try:
            self._folder.write(BATCH, self._record.to_text())
        except RunFolderError as error:
            self._say(f"Warning: {error.one_line()}")
