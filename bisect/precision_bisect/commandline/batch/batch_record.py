"""What is known of a batch at any moment: `batch.json`, and summaries as Markdown and JUnit's XML.

Names and messages are untrusted: in the summaries both are escaped.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from precision_bisect.errors import ExitCode, RunFolderError, printable
from precision_bisect.runs import plain_json
from precision_bisect.runs.monitoring.run_watch import spoken
from precision_bisect.runs.typed_json import Count, read_typed

BATCH = "batch.json"
MESSAGE = 400
"""Characters of a job's message, at most."""


class JobState(StrEnum):
    """How a job stands that has no ending of its own; the others are those of `result.json`."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"


_WITHOUT_ENDING = frozenset(state.value for state in JobState)
_FINAL = (ExitCode.OK, ExitCode.NO_PLAN, ExitCode.NOT_BUILT)
_WORST_FIRST = (
    *(ExitCode.INTERNAL, ExitCode.USAGE, ExitCode.NOT_BUILT, ExitCode.NO_PLAN),
    ExitCode.BUDGET,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One search: `command` begins it, or goes on with it, in the folder of the jobs file.

    `model_stamp` tells a model file that was written anew. `status` is a `JobState` or the status
    in its `result.json`, where all figures are; `kept` counts layers. `seconds` are those of all
    its processes so far. `exit_code` is the last one's, negative for a signal.
    """

    name: str
    model: str
    model_stamp: list[int]
    command: list[str]
    run_folder: str
    log: str
    status: str = JobState.WAITING
    exit_code: int | None = None
    message: str = ""
    kept: Count | None = None
    candidates: Count | None = None
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the job has an answer that no further trial changes."""
        return self.exit_code in _FINAL and self.status not in _WITHOUT_ENDING

    @property
    def verdict(self) -> ExitCode:
        """What the job adds to the batch's exit code."""
        if self.exit_code is None or self.exit_code == ExitCode.INTERRUPTED:
            return ExitCode.BUDGET
        ended = self.status != JobState.FAILED or self.exit_code == ExitCode.INTERNAL
        known = self.exit_code in {code.value for code in ExitCode}
        return ExitCode(self.exit_code) if ended and known else ExitCode.USAGE

    def __str__(self) -> str:
        kept = "" if self.kept is None else f", {self.kept} of {self.candidates} kept"
        took = f", after {spoken(self.seconds)}" if self.seconds else ""
        see = f"; see {self.log}" if self.seconds else ""
        failed = f": {self.message}{see}" if self.message else ""
        return printable(f"{self.name}: {self.status.replace('_', ' ')}{kept}{took}{failed}")


@dataclass(slots=True, kw_only=True)
class Batch:
    """All jobs of a batch, in order. Times are UTC, ISO 8601; `until` is the limit, if any."""

    schema: Literal[1] = 1
    jobs_file: str
    started: str
    until: str | None = None
    ended: str | None = None
    interrupted: bool = False
    jobs: list[Job] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """The worst ending: interrupted, could not run, no build, no plan, no budget, all well."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        codes = {job.verdict for job in self.jobs}
        return next((code for code in _WORST_FIRST if code in codes), ExitCode.OK)

    def to_json(self) -> str:
        """Return `batch.json` as text; `exit_code` is None until the batch has ended."""
        code = None if self.ended is None else self.exit_code
        return plain_json.dumps({**plain_json.plain(self), "exit_code": code}, indent=2) + "\n"

    def to_text(self, folder: Path) -> str:
        """Return a line for each job of the batch whose `batch.json` lies in `folder`."""
        lines: Sequence[object] = [*self.jobs, printable(f"written to {folder / BATCH}")]
        return "".join(f"{line}\n" for line in lines)


def read_batch(folder: Path) -> Batch | None:
    """Return the batch that a folder holds; None where it holds none.

    Raises RunFolderError for a `batch.json` that this version cannot read.
    """
    path = folder / BATCH
    try:
        return read_typed(Batch, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RunFolderError(
            f"cannot read {path}: {why}", "replace the batch with --overwrite, or mend it"
        ) from error


SUMMARY, JUNIT = "summary.md", "junit.xml"
_MARKUP = str.maketrans({each: f"\\{each}" for each in "\\`*_{}[]()#+!|~$"})
_ELEMENTS = {
    ExitCode.NO_PLAN: "failure",
    ExitCode.NOT_BUILT: "failure",
    ExitCode.BUDGET: "skipped",
    ExitCode.USAGE: "error",
    ExitCode.INTERNAL: "error",
}
"""What JUnit calls the endings; a job that ended well is none of them."""


def markdown(batch: Batch) -> str:
    """Return a table of the jobs."""
    head = "| job | ended | FP32 layers | time | why |\n|---|---|---:|---:|---|\n"
    rows = (" | ".join(map(_escaped, _cells(job))) for job in batch.jobs)
    return head + "".join(f"| {row} |\n" for row in rows)


def _cells(job: Job) -> tuple[str, ...]:
    kept = "" if job.kept is None else f"{job.kept} of {job.candidates}"
    took = spoken(job.seconds) if job.seconds else ""
    return job.name, job.status.replace("_", " "), kept, took, job.message


def _escaped(text: str) -> str:
    return html.escape(printable(text), quote=False).translate(_MARKUP)


def junit(batch: Batch) -> str:
    """Return a test suite with a case for each job."""
    endings = [_ELEMENTS.get(job.verdict) for job in batch.jobs]
    suite = ElementTree.Element(
        "testsuite",
        name=printable(Path(batch.jobs_file).name),
        tests=str(len(batch.jobs)),
        failures=str(endings.count("failure")),
        errors=str(endings.count("error")),
        skipped=str(endings.count("skipped")),
        time=f"{sum(job.seconds for job in batch.jobs):.3f}",
    )
    for job, ending in zip(batch.jobs, endings, strict=True):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="precision-bisect",
            name=printable(job.name),
            time=f"{job.seconds:.3f}",
        )
        if ending is not None:
            why = printable(job.message or job.status.replace("_", " "))
            ElementTree.SubElement(case, ending, message=why)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
