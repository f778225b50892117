"""Rows of the zoo as JSON, and as one table in Markdown."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zoo.judge import Judgement

HEAD = (
    "network",
    "limit",
    "tool",
    "status",
    "kept",
    "error said",
    "s",
    "trials",
    "forecasts",
    "error",
    "copies: median",
    "max",
    "failed",
    "fresh failed",
)
ANSWERS = ("found", "nothing_to_keep")
"""What is said of a run that ended with an answer; others end with the best plan so far."""
INFINITE = "inf"
BLANK = "-"
NOTE = """# The zoo

Made by `python -m zoo` in `benchmarks/`, see [its README](../README.md). `error said` is the
tool's. What follows is the independent evaluator's, of the exported `model.mixed.onnx`: on the
judging samples, on copies of them that differ by one part in 100,000, and on fresh samples.
Marked *: no input is a float, a copy has noise of 1e-6 on each FP16 result before it is rounded.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run of the tool on a network; what it did not come to is None."""

    network: str
    label: str
    limit: str
    bound: float
    exit: int
    status: str
    message: str
    minimal: bool | None
    candidates: int | None
    kept: int | None
    error: float | None
    seconds: float
    trials: int | None
    forecasts: int | None
    judged: Judgement | None
    arguments: str = ""

    @property
    def key(self) -> tuple[str, float, str]:
        """What there is one row of."""
        return self.network, self.bound, self.label


def load(path: Path) -> list[Row]:
    """Return the rows of a file, none where there is no file."""
    if not path.exists():
        return []
    return [_row(each) for each in json.loads(path.read_text())["rows"]]


def save(rows: Sequence[Row], path: Path, about: dict[str, str]) -> None:
    """Write the rows, and the table beside them; `about` has a sentence for each label."""
    document = {"about": about, "rows": [_written(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(rows, about))


def abouts(path: Path) -> dict[str, str]:
    """Return the sentences of a file's labels."""
    return dict(json.loads(path.read_text())["about"]) if path.exists() else {}


def merged(rows: Iterable[Row], new: Row, order: Sequence[str]) -> list[Row]:
    """Return the rows with a new one instead of the same of before, networks in this order."""
    kept = [row for row in rows if row.key != new.key]
    places = {name: place for place, name in enumerate(order)}
    return sorted([*kept, new], key=lambda row: (places[row.network], -row.bound, row.label))


def markdown(rows: Sequence[Row], about: dict[str, str]) -> str:
    """Return the page: what it is, the tools, the table, what was said instead of answers."""
    lines = [NOTE]
    lines += [_about(label, about, rows) for label in sorted({row.label for row in rows})]
    lines += ["", _line(HEAD), _line(["---"] * len(HEAD))]
    lines += [_line(_cells(row)) for row in rows]
    stopped = [row for row in rows if row.message]
    said = [f"- {row.network}, {row.bound:g}, {row.label}: {row.message}" for row in stopped]
    if said:
        lines += ["", "Said instead of an answer:", "", *said]
    return "\n".join([*lines, ""])


def _about(label: str, about: dict[str, str], rows: Sequence[Row]) -> str:
    """Return a line on a tool: what it is, and how many of its answers do not hold."""
    runs = [row for row in rows if row.label == label]
    answers = [row.judged for row in runs if row.judged and row.status in ANSWERS]
    worse = sum(found.copies_failed * 20 > found.copies for found in answers)
    unseen = sum(found.fresh_failed > 0 for found in answers)
    parts = [
        f"- {label}: {len(runs)} runs, {len(answers)} answers",
        f"{worse} fail on more than one of 20 copies, {unseen} on a fresh sample",
        about.get(label, ""),
    ]
    return "; ".join(filter(None, parts))


def _cells(row: Row) -> list[str]:
    """Return the cells of a row."""
    kept = BLANK if row.kept is None else f"{row.kept} of {row.candidates}"
    return [
        row.network,
        f"{row.limit} {row.bound:g}",
        row.label,
        row.status + (", minimal" if row.minimal else ""),
        kept,
        _short(row.error),
        f"{row.seconds:.0f}",
        _short(row.trials),
        _short(row.forecasts),
        *_judged(row.judged),
    ]


def _judged(found: Judgement | None) -> list[str]:
    """Return the cells of the independent evaluator."""
    if found is None:
        return [BLANK] * 5
    inside = "*" if found.copied == "inside" else ""
    return [
        _short(found.error),
        _short(found.error_median),
        _short(found.error_max),
        f"{found.copies_failed} of {found.copies}{inside}",
        f"{found.fresh_failed} of {found.fresh}",
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(value: float | None) -> str:
    """Return three digits of an error, all of a count."""
    return BLANK if value is None else str(value) if isinstance(value, int) else f"{value:.3g}"


def _written(row: Row) -> dict[str, Any]:
    """Return the fields of a row; infinite numbers, which JSON has not, as text."""
    fields = asdict(row)
    for each in (fields, fields["judged"] or {}):
        for name, value in each.items():
            if value == math.inf:
                each[name] = INFINITE
    return fields


def _row(fields: dict[str, Any]) -> Row:
    """Return the row of what was written."""
    for each in (fields, fields["judged"] or {}):
        each.update({name: math.inf for name, value in each.items() if value == INFINITE})
    judged = fields.pop("judged")
    return Row(**fields, judged=Judgement(**judged) if judged else None)
