"""What is known of a batch at any moment, and what changed between two, by the jobs' names.

`batch.json` holds it. Names and messages are untrusted: in Markdown and JUnit's XML both are
escaped.
"""

import html
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from precision_bisect.errors import ExitCode, RunFolderError, printable
from precision_bisect.runs import plain_json
from precision_bisect.runs.comparing.changes import Comparison, Side, compare, read_side
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
    OTHER_MODEL = "other_model"


_WITHOUT_ENDING = frozenset(state.value for state in JobState)
_FINAL = (ExitCode.OK, ExitCode.NO_PLAN, ExitCode.NOT_BUILT, ExitCode.BAD_EXPORT)
_WORST_FIRST = (
    *(ExitCode.INTERNAL, ExitCode.USAGE, ExitCode.BAD_EXPORT, ExitCode.NOT_BUILT),
    *(ExitCode.NO_PLAN, ExitCode.BUDGET),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One search: `command` begins it, or goes on with it, in the folder of the jobs file.

    `model_stamp` tells a model file that was written anew. `status` is a `JobState` or the status
    in its `result.json`, where all figures are; `kept` counts layers, `deploy` says what to
    deploy, in few words. `seconds` are those of all its processes so far. `exit_code` is the last
    one's, negative for a signal; that process was asked to end before where it is `cut_short`:
    what it tells of an answer may not be whole.
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
    deploy: str = ""
    cut_short: bool = False
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the job has an answer that no further trial changes."""
        ended = self.exit_code in _FINAL and self.status not in _WITHOUT_ENDING
        return ended and not self.cut_short

    @property
    def verdict(self) -> ExitCode:
        """What the job adds to the batch's exit code."""
        if self.exit_code is None or self.exit_code == ExitCode.INTERRUPTED:
            return ExitCode.BUDGET
        ended = self.status != JobState.FAILED or self.exit_code == ExitCode.INTERNAL
        is_known = self.exit_code in {code.value for code in ExitCode}
        return ExitCode(self.exit_code) if ended and is_known else ExitCode.USAGE

    def __str__(self) -> str:
        kept = "" if self.kept is None else f", {self.kept} of {self.candidates} kept"
        took = f", after {spoken(self.seconds)}" if self.seconds else ""
        took += f", deploy {self.deploy}" if self.deploy else ""
        see = f"; see {self.log}" if self.seconds and self.log else ""
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
        """The worst ending: interrupted, could not run, an export that must not be used, no build,
        no plan, no budget, all well.
        """
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
        return "".join(f"{job}\n" for job in self.jobs) + written_line(folder)


def written_line(folder: Path) -> str:
    """Return where the record of a batch lies, as a line."""
    return f"{printable(f'written to {folder / BATCH}')}\n"


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
_MARKUP = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]()#+!|~$"})
# What JUnit calls the endings; a job that ended well is none of them.
_ELEMENTS = {
    ExitCode.BAD_EXPORT: "failure",
    ExitCode.NO_PLAN: "failure",
    ExitCode.NOT_BUILT: "failure",
    ExitCode.BUDGET: "skipped",
    ExitCode.USAGE: "error",
    ExitCode.INTERNAL: "error",
}


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
        properties = ElementTree.SubElement(case, "properties")
        # Services show these beside a case, and plot numbers over builds.
        for key in ("status", "kept", "candidates", "deploy", "exit_code", "run_folder", "log"):
            if (value := getattr(job, key)) not in (None, ""):
                ElementTree.SubElement(
                    properties, "property", name=key, value=printable(str(value))
                )
        if ending is not None:
            why = printable(job.message or job.status.replace("_", " "))
            ElementTree.SubElement(case, ending, message=why)
        ElementTree.SubElement(case, "system-out").text = f"{job}\n{printable(job.log)}".rstrip()
    # ElementTree escapes; what XML cannot hold at all, printable() has replaced.
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_FIGURES = ("error", "latency_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A job in both batches; a side is None where that batch has no result of it.

    `lacking` is the batch, "before" or "after", that has no such job at all.
    """

    name: str
    before: Side | None
    after: Side | None
    lacking: str = ""

    @property
    def found(self) -> Comparison | None:
        """What changed, where both have a result."""
        return compare(self.before, self.after) if self.before and self.after else None

    @property
    def same(self) -> bool:
        """Whether both keep the same layers, or have no result both."""
        comparison = self.found
        if comparison is not None:
            return comparison.same
        return self.before is self.after and not self.lacking

    def __str__(self) -> str:
        comparison = self.found
        if self.lacking:
            return f"{self.name}: no such job {self.lacking}"
        if comparison is None:
            missing = "" if self.same else " before" if self.after else " after"
            return f"{self.name}: no result{missing}"
        before, after = comparison.before.to_json(), comparison.after.to_json()
        if not before["answered"] or not after["answered"]:
            remarks = ["the same ending" if self.same else "an answer in one of them"]
        elif comparison.same:
            remarks = [f"the same {after['kept']} kept"]
        else:
            moved = f"{len(comparison.added)} added, {len(comparison.removed)} removed"
            remarks = [f"{before['kept']} -> {after['kept']} kept ({moved})"]
        for key in _FIGURES:
            one, other = before[key], after[key]
            if one != other:
                shown = ("none" if value is None else f"{value:.3g}" for value in (one, other))
                remarks.append(f"{key} {' -> '.join(shown)}")
        return f"{self.name}: {', '.join(remarks)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComparison:
    """All jobs of two batches, those of the later one first."""

    jobs: Sequence[JobChange]

    @property
    def same(self) -> bool:
        """Whether nothing that is kept has changed."""
        return all(job.same for job in self.jobs)

    def to_text(self) -> str:
        return "".join(f"{printable(str(job))}\n" for job in self.jobs)

    def to_json(self) -> str:
        """Return what `compare --json` prints (docs/ci.md)."""
        changes = ((job, None if job.found is None else job.found.to_json()) for job in self.jobs)
        jobs = [{"name": job.name, "same": job.same, "change": change} for job, change in changes]
        record: Mapping[str, Any] = {"schema": 1, "same": self.same, "jobs": jobs}
        return plain_json.dumps(record, indent=2) + "\n"


def compare_batches(before: Path, after: Path) -> BatchComparison | None:
    """Return what changed between the batches in two folders; None where neither holds one.

    A batch's `batch.json` stands for its folder. Raises RunFolderError where only one is a batch.
    """
    before, after = (path.parent if path.name == BATCH else path for path in (before, after))
    batches = [read_batch(folder) for folder in (before, after)]
    if batches == [None, None]:
        return None
    if None in batches:
        folder = before if batches[0] is None else after
        lacks = f"holds no {BATCH}" if folder.exists() else "does not exist"
        raise RunFolderError(f"{folder} {lacks}", "compare two batches, or two runs")
    first, second = (
        _sides(folder, batch) for folder, batch in zip((before, after), batches, strict=True)
    )
    jobs = [
        JobChange(
            name=name,
            before=first.get(name),
            after=second.get(name),
            lacking="before" if name not in first else "after" if name not in second else "",
        )
        # In the order of the newer file, with what it has lost at the end.
        for name in dict.fromkeys((*second, *first))
    ]
    return BatchComparison(jobs=jobs)


def _sides(folder: Path, batch: Batch | None) -> Mapping[str, Side | None]:
    """Return what each job of a batch has found; its folder may have moved since."""
    sides: dict[str, Side | None] = {}
    for job in batch.jobs if batch is not None else ():
        sides[job.name] = None
        with suppress(RunFolderError):
            sides[job.name] = read_side(folder / Path(job.run_folder).name)
    return sides
