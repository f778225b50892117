"""A batch from its jobs file to its table: `precision-bisect batch jobs.toml`."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from precision_bisect.batch.batch_course import BatchCourse
from precision_bisect.batch.batch_record import BATCH, BatchRecord, log_path, read_batch
from precision_bisect.batch.jobs import Job, read_jobs
from precision_bisect.batch.resume import take_up
from precision_bisect.batch.until import Deadline, parse_until
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.machine.atomic import remove_debris
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.belonging import RUN, Claim, has_keys, is_run
from precision_bisect.run_folder.locking import RunLock, now


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What `precision-bisect batch` is asked to do; `until` as it is written there."""

    jobs_file: Path
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    until: str | None = None
    stop_on_error: bool = False

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other", "choose one")

    @property
    def folder(self) -> Path:
        """The batch's folder."""
        return self.out or Path(f"{self.jobs_file.stem}.precision-bisect")


def run_batch(
    options: BatchOptions,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.time,
) -> BatchRecord:
    """Run the jobs of a file and return how each ended; `batch.json` says the same at any moment.

    `say` gets lines of progress; `clock` tells seconds since the epoch. Raises a
    PrecisionBisectError, with nothing started, for a file or a folder that cannot work.
    """
    at = None if options.until is None else parse_until(options.until, clock())
    jobs = read_jobs(options.jobs_file, options.folder)
    if options.resume:
        read_batch(options.folder)
    with RunLock(options.folder, _claim(options.folder, jobs)) as lock:
        _refuse_what_is_there(options, jobs)
        folder = lock.open(overwrite=False, rungs=False)
        if options.overwrite:
            _clear(folder.path, jobs)
        remove_debris(folder.path, (BATCH,))
        earlier = read_batch(folder.path)
        former = {} if earlier is None else earlier.jobs
        record = BatchRecord(
            jobs_file=str(options.jobs_file.absolute()),
            started=now(),
            until=None if at is None else datetime.fromtimestamp(at, UTC).isoformat(),
            jobs=take_up(jobs, former, folder.path.absolute(), say),
        )
        deadline = Deadline.of(at, clock)
        course = BatchCourse(record, folder, options.jobs_file.parent, deadline, say)
        course.run(jobs, stop_on_error=options.stop_on_error)
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a batch would start: by the name of each job its command, run in `folder`."""

    folder: Path
    commands: Mapping[str, Sequence[str]]

    def to_text(self) -> str:
        """Return a line for a shell per job."""
        folder = shlex.quote(str(self.folder))
        return "".join(f"(cd {folder} && {shlex.join(each)})\n" for each in self.commands.values())

    def to_json(self) -> str:
        """Return the same as JSON."""
        jobs = [{"name": name, "command": list(each)} for name, each in self.commands.items()]
        plain = {"schema": 1, "folder": str(self.folder), "jobs": jobs}
        return plain_json.dumps(plain, indent=2) + "\n"


def dry_run(options: BatchOptions) -> DryRun:
    """Check the jobs and return the command of each. Raises as `run_batch` does."""
    if options.until is not None:
        parse_until(options.until, time.time())
    commands = {}
    for job in read_jobs(options.jobs_file, options.folder):
        *flags, _, model = job.command
        out = f"--out={job.run_folder}"
        commands[job.name] = ["precision-bisect", *flags, out, "--", model]
    return DryRun(folder=options.jobs_file.parent, commands=commands)


def _claim(folder: Path, jobs: Sequence[Job]) -> Claim:
    """Return what a batch itself writes into its folder."""
    names = [BATCH, *(log_path(job, folder).name for job in jobs)]
    return Claim(
        names=lambda: names,
        known=lambda place: has_keys(place / BATCH, ("schema", "jobs_file", "jobs")),
    )


def _refuse_what_is_there(options: BatchOptions, jobs: Sequence[Job]) -> None:
    """Raise RunFolderError where a folder holds a batch or a run that nobody spoke of.

    Also where a job would replace what is somebody else's.
    """
    for job in jobs:
        RUN.check(job.run_folder)
    if options.resume or options.overwrite:
        return
    hint = "go on with --resume, replace it with --overwrite, or choose another --out"
    if (options.folder / BATCH).exists():
        raise RunFolderError(f"{options.folder} already holds a batch", hint)
    for job in jobs:
        if is_run(job.run_folder):
            raise RunFolderError(f"job {job.name}: {job.run_folder} already holds a run", hint)


def _clear(folder: Path, jobs: Sequence[Job]) -> None:
    """Remove what former runs left, the record first: without it nothing half removed counts."""
    (folder / BATCH).unlink(missing_ok=True)
    for job in jobs:
        log_path(job, folder).unlink(missing_ok=True)
        if is_run(job.run_folder):
            with RunLock(job.run_folder) as lock:
                lock.open(overwrite=True, rungs=False)
