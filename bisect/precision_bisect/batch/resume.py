"""What a former batch in the same folder leaves for this one to do."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from precision_bisect.batch.batch_record import JobRecord, State
from precision_bisect.batch.jobs import Job
from precision_bisect.batch.outcome import result_stamp
from precision_bisect.errors import RunFolderError
from precision_bisect.run_folder.belonging import is_run
from precision_bisect.run_folder.locking import RunLock, owner_of

_POLL_S = 0.1
GOES_ON = frozenset(
    {
        *("max-trials", "max-time", "workers", "threads", "certify", "build-timeout"),
        *("max-latency", "min-speedup", "optuna-storage", "on-finish", "isolate"),
        *("forecast-on", "keep-engines", "disk-cap"),
        *("trial-timeout", "trial-memory"),
    }
)
"""Keys on which no verdict depends: with others than these, trials of before mean nothing."""


def take_up(
    jobs: Sequence[Job],
    former: Mapping[str, JobRecord],
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, JobRecord]:
    """Return the records to go on with, by name; what stays as it is or begins anew is said.

    Waits for processes of a batch that was killed. Raises RunFolderError.
    """
    records = {}
    for job in jobs:
        record = JobRecord.of(job, folder)
        before = former.get(job.name)
        if before is not None:
            if before.status == State.RUNNING:
                _wait_for_owner(job, say)
            record = _taken_up(job, before, record, say)
        records[job.name] = record
    return records


def _taken_up(
    job: Job, before: JobRecord, new: JobRecord, say: Callable[[str], None]
) -> JobRecord:
    changed = _changed(before.command, new.command)
    if changed - GOES_ON:
        aside = _set_aside(job.run_folder)
        kept = f"; its former run is now {aside}" if aside else ""
        say(f"{job.name}: its command has changed ({', '.join(sorted(changed))}){kept}")
        return new
    if (before.model_stamp, before.run_folder) != (new.model_stamp, new.run_folder):
        say(f"{job.name}: its model or its run folder has changed since, so it is looked at again")
        return new
    if changed:
        say(f"{job.name}: its command has changed ({', '.join(sorted(changed))}); it goes on")
    elif before.finished and result_stamp(job.run_folder):
        say(f"{job.name}: {before.status.replace('_', ' ')} before, not run again")
        return before
    if before.status in (State.NOT_STARTED, State.WAITING) or before.finished:
        return replace(new, seconds=before.seconds)
    status = State.INTERRUPTED if before.status == State.RUNNING else before.status
    return replace(before, command=new.command, log=new.log, status=status)


def _changed(before: Sequence[str], now: Sequence[str]) -> set[str]:
    """Return the keys in which two commands differ; the last argument is the model."""
    differ = (Counter(before[:-1]) - Counter(now[:-1])) + (
        Counter(now[:-1]) - Counter(before[:-1])
    )
    keys = {text.removeprefix("--").partition("=")[0] for text in differ}
    return keys | ({"model"} if before[-1:] != now[-1:] else set())


def _set_aside(folder: Path) -> Path | None:
    """Rename the folder of a run that is of no use to a changed job; None where there is none."""
    if not is_run(folder):
        return None
    with RunLock(folder):
        pass  # a driver that writes into it refuses this
    number = 1  # no job's name holds a tilde
    while (aside := Path(f"{folder}~{number}")).exists():
        number += 1
    try:
        return folder.rename(aside)
    except OSError as error:
        raise RunFolderError(
            f"cannot rename {folder}: {error.strerror}", "move it away, then --resume"
        ) from error


def _wait_for_owner(job: Job, say: Callable[[str], None]) -> None:
    """Wait while the process that a killed batch had started still writes its run folder."""
    said = False
    while (owner := owner_of(job.run_folder)) is not None and owner.alive:
        if not said:
            say(f"{job.name}: still run by {owner}; waiting for its end")
            said = True
        time.sleep(_POLL_S)
