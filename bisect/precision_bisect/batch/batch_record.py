"""What is known of a batch at any moment, as `batch.json` holds it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from precision_bisect.batch.jobs import Job
from precision_bisect.errors import ExitCode, RunFolderError
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.typed_json import Count, read_typed
from precision_bisect.trial import Figure

BATCH = "batch.json"
SCHEMA = 1


class State(StrEnum):
    """How a job stands that has no ending of its own; the others are those of `result.json`."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    TIME_UP = "time_up"
    NOT_STARTED = "not_started"


_OWN = frozenset(state.value for state in State)
_SETTLED = (ExitCode.OK, ExitCode.NO_PLAN, ExitCode.NOT_BUILT)
_WORST_FIRST = (
    *(ExitCode.INTERRUPTED, ExitCode.INTERNAL, ExitCode.USAGE, ExitCode.NOT_BUILT),
    *(ExitCode.NO_PLAN, ExitCode.BUDGET),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job: `status` is a `State` or the status in its `result.json`.

    Figures are those of `result.json`, None before the first; `kept` counts layers. `seconds` are
    those of all its processes so far. `exit_code` is the last one's, negative for a signal.
    `model_stamp` tells a model file that was written anew.
    """

    name: str
    model: str
    model_stamp: Sequence[int]
    command: Sequence[str]
    run_folder: str
    log: str
    status: str = State.WAITING
    exit_code: int | None = None
    message: str = ""
    kept: Count | None = None
    candidates: Count | None = None
    error: Figure | None = None
    tolerance: Figure | Mapping[str, Any] | None = None
    trials: Count | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, job: Job, folder: Path) -> "JobRecord":
        """Return the record of a job that waits; its log goes to the batch's `folder`."""
        return cls(
            name=job.name,
            model=job.model,
            model_stamp=job.model_stamp,
            command=list(job.command),
            run_folder=str(job.run_folder),
            log=str(log_path(job, folder)),
        )

    @property
    def finished(self) -> bool:
        """Whether the job has an answer that no further trial changes."""
        return self.exit_code in _SETTLED and self.status not in _OWN

    @property
    def verdict(self) -> ExitCode:
        """What the job adds to the batch's exit code."""
        if self.status == State.TIME_UP:
            return ExitCode.BUDGET
        known = {code.value: code for code in ExitCode}
        code = known.get(self.exit_code or 0, ExitCode.USAGE)
        if self.status in (State.FAILED, State.CRASHED) and code is not ExitCode.INTERNAL:
            return ExitCode.USAGE
        return code


def log_path(job: Job, folder: Path) -> Path:
    """Return where what a job prints goes, for the batch of a folder."""
    return folder / f"{job.name}.log"


@dataclass(slots=True, kw_only=True)
class BatchRecord:
    """All jobs of a batch, in order. Times are UTC, ISO 8601; `until` is the deadline, if any.

    `stopped_by` says why jobs were left out, where some were, as the exit code for that.
    """

    jobs_file: str
    started: str
    until: str | None = None
    ended: str | None = None
    stopped_by: int | None = None
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """The worst ending: interrupted, could not run, no build, no plan, no budget, all well."""
        codes = {job.verdict for job in self.jobs.values()} | {self.stopped_by}
        return next((code for code in _WORST_FIRST if code in codes), ExitCode.OK)

    def to_text(self) -> str:
        """Return `batch.json` as text; `exit_code` is None until the batch has ended."""
        plain = {
            "schema": SCHEMA,
            "jobs_file": self.jobs_file,
            "started": self.started,
            "until": self.until,
            "ended": self.ended,
            "stopped_by": self.stopped_by,
            "exit_code": None if self.ended is None else self.exit_code,
            "jobs": list(self.jobs.values()),
        }
        return plain_json.dumps(plain, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What is read back of the file."""

    schema: Literal[1]
    jobs_file: str
    started: str
    until: str | None
    ended: str | None
    stopped_by: int | None
    jobs: Sequence[JobRecord]


def read_batch(folder: Path) -> BatchRecord | None:
    """Return the batch that a folder holds; None where it holds none.

    Raises RunFolderError for a `batch.json` that this version cannot read.
    """
    path = folder / BATCH
    try:
        told = read_typed(_Written, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"cannot read {path}: {error}", "replace the batch with --overwrite, or mend it"
        ) from error
    return BatchRecord(
        jobs_file=told.jobs_file,
        started=told.started,
        until=told.until,
        ended=told.ended,
        stopped_by=told.stopped_by,
        jobs={job.name: job for job in told.jobs},
    )
