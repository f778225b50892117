"""A batch as text: one row per job in 80 columns, and what went wrong below it."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from precision_bisect.batch.batch_record import BATCH, BatchRecord, JobRecord
from precision_bisect.errors import printable

_WIDTH = 80
_GAP = "  "
_HEADS = ("job", "status", "kept", "error/tolerance", "trials", "time")
_RIGHT = (4, 5)
"""Columns of figures, which end together."""
_LEAST_NAME = 8


def as_text(record: BatchRecord, folder: Path) -> str:
    """Return the table of a batch whose `batch.json` lies in `folder`."""
    jobs = list(record.jobs.values())
    rows = [_HEADS, *(_row(job) for job in jobs)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
    others = sum(widths[1:]) + len(_GAP) * (len(_HEADS) - 1)
    widths[0] = max(_LEAST_NAME, min(widths[0], _WIDTH - others))
    lines = [_line(row, widths) for row in rows]
    for job in jobs:
        if job.message:
            lines.append(
                f"{printable(job.name)}: {printable(job.message)}; see {printable(job.log)}"
            )
    return "\n".join([*lines, f"written to {printable(str(folder / BATCH))}"]) + "\n"


def headline(job: JobRecord) -> str:
    """Return how a job ended, on one line."""
    kept = "" if job.kept is None else f", {_kept(job)} kept"
    message = f": {printable(job.message)}" if job.message else ""
    return f"{_words(job.status)}{kept}, after {clock_time(job.seconds)}{message}"


def clock_time(seconds: float) -> str:
    """Return hours, minutes and seconds as 1:05:09."""
    minutes, rest = divmod(round(seconds) if isfinite(seconds) else 0, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _row(job: JobRecord) -> tuple[str, ...]:
    return (
        printable(job.name),
        _words(job.status),
        "-" if None in (job.kept, job.candidates) else _kept(job),
        "-" if job.error is None else f"{job.error:.3g}/{_limit(job.tolerance)}",
        "-" if job.trials is None else str(job.trials),
        clock_time(job.seconds) if job.seconds else "-",
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [_cut(text, width) for text, width in zip(row, widths, strict=True)]
    for place, width in enumerate(widths):
        cells[place] = cells[place].rjust(width) if place in _RIGHT else cells[place].ljust(width)
    return _GAP.join(cells).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _kept(job: JobRecord) -> str:
    return f"{job.kept} of {job.candidates}"


def _words(status: str) -> str:
    return printable(status.replace("_", " "))


def _limit(tolerance: object) -> str:
    """Return the limit; several are one, in multiples of which the error is told."""
    return f"{tolerance:.3g}" if isinstance(tolerance, int | float) else "1"
