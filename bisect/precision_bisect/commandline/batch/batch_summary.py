"""A batch for people who read Markdown, and for services that read JUnit's XML.

Names and messages are untrusted: both are escaped.
"""

import html
from pathlib import Path
from xml.etree import ElementTree

from precision_bisect.commandline.batch.batch_record import Batch, Job
from precision_bisect.errors import ExitCode, printable
from precision_bisect.runs.monitoring.run_watch import spoken

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
