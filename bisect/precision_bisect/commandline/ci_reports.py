"""What services show of runs: JUnit's XML, and GitHub's annotations and summary."""

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from precision_bisect.commandline.batch.batch_record import Batch, Job, JobState, junit, markdown
from precision_bisect.commandline.internal_errors import complain, tell
from precision_bisect.errors import ExitCode, UsageError, printable
from precision_bisect.options import Options
from precision_bisect.runs.locking import now
from precision_bisect.runs.results.result import Result

_SUMMARY = "GITHUB_STEP_SUMMARY"
# Bytes in which a JUnit file names its suite.
_HEAD = 512
# GitHub shows so many annotations of a step.
_MOST_ANNOTATED = 10


def check_junit(path: Path, run: Path) -> None:
    """Remove the JUnit file of a run before, so that it does not stand for this one.

    Raises UsageError for what is no such file, and where none can be written.
    """
    hint = "give --junit a new file, or one that it wrote before"
    if path.absolute().is_relative_to(run.absolute()):
        raise UsageError(f"{path} is in the run folder, {run}", hint)
    try:
        if os.path.lexists(path):
            with path.open("rb") as stream:
                if b"<testsuite" not in stream.read(_HEAD):
                    raise UsageError(f"{path} is no JUnit file", hint)
        path.write_text("", encoding="utf-8")
        path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint) from error


@contextmanager
def commands_stopped(*, github: bool) -> Iterator[None]:
    """Have GitHub take no line within for a command: names of layers begin lines."""
    word = secrets.token_hex(16)
    if github:
        tell(f"::stop-commands::{word}")
    try:
        yield
    finally:
        if github:
            sys.stdout.flush()
            tell(f"::{word}::")


def report_to_services(
    options: Options,
    result: Result | None,
    code: ExitCode | int,
    remarks: Sequence[str],
    *,
    junit_file: Path | None,
    github: bool,
) -> None:
    """Write JUnit's file, and what GitHub reads; `remarks` say why the code is not 0, or warn.

    A file that cannot be written is a warning.
    """
    # A single run is told as a batch of one, so that services get one form.
    job = Job(
        name=options.model.name,
        model=str(options.model),
        model_stamp=[],
        command=[],
        run_folder=str(options.folder),
        log="",
        status=JobState.FAILED if result is None else result.status,
        exit_code=int(code),
        message="; ".join(remarks),
        kept=None if result is None else len(result.kept),
        candidates=None if result is None else result.candidates,
        seconds=0.0 if result is None else result.wall_s,
    )
    batch = Batch(jobs_file=job.model, started=now(), jobs=[job])
    if junit_file is not None:
        _write(junit_file, junit(batch), "w")
    if github:
        level = _level(job) if code == ExitCode.OK else "error"
        layers = () if result is None else result.kept
        _tell_github([(level, remark) for remark in remarks or [str(job)]], batch, layers)


def tell_github_of_jobs(batch: Batch) -> None:
    """Tell GitHub how each job of a batch ended: what failed first, as few are shown."""
    by_level: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for job in batch.jobs:
        by_level[_level(job)].append(str(job))
    _tell_github([(level, line) for level, lines in by_level.items() for line in lines], batch)


def _level(job: Job) -> str:
    """Return how grave a job's annotation is: one that ended well with a remark is a warning."""
    if job.verdict == ExitCode.OK:
        return "warning" if job.message else "notice"
    return "warning" if job.verdict == ExitCode.BUDGET else "error"


def _tell_github(
    annotations: Sequence[tuple[str, str]], batch: Batch, layers: Sequence[str] = ()
) -> None:
    for level, text in annotations[:_MOST_ANNOTATED]:
        tell(f"::{level} title=precision-bisect::{_escaped(text)}")
    if path := os.environ.get(_SUMMARY):
        kept = "".join(f"- `{_plain(name)}`\n" for name in layers)
        _write(Path(path), f"{markdown(batch)}\n{kept}", "a")


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except (OSError, ValueError) as error:
        complain(f"warning: cannot write {path}: {getattr(error, 'strerror', error)}")


def _escaped(text: str) -> str:
    """Return text as a workflow command has it: a name may hold what begins another."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _plain(name: str) -> str:
    return printable(name).replace("`", "'")
