"""The errors of the answer as a small table: each output in its own units."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precision_bisect.errors import printable
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import OutputError
from precision_bisect_reports.rows import EVIDENCE, NEWS, Form, Row

MOST_OUTPUT_ROWS = 3
_DECIBELS = ("psnr", "snr")
_NAME = 18
_LIMIT = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    """One output with its limits: `atol` and `rtol`, or for classes the `share` that may differ.

    They are limits of what is `measured`, the largest error or another figure of the output.
    """

    error: OutputError
    measured: float
    atol: float | None
    rtol: float | None
    share: float | None

    @property
    def relative(self) -> bool:
        """Whether the output has passed by its relative limit."""
        return bool(self.rtol) and self.measured > (self.atol or 0.0)

    @property
    def used(self) -> float:
        """How much of its limit the output takes up; all of it where nobody can tell."""
        if self.share is not None:
            return self.error.differing / (self.share * self.error.elements or 0.5)
        return self.measured / self.atol if self.atol else 1.0

    def __str__(self) -> str:
        name = printable(self.error.output)
        name = name if len(name) < _NAME else f"{name[: _NAME - 5]}…{name[-3:]}"
        if self.share is not None:
            counts = f"{self.error.differing} of {self.error.elements} differ"
            limit = f"{100 * self.share:g}%" if self.share else "exact"
            return f"{name:<{_NAME}}{counts:>27} {limit:>{_LIMIT}}"
        errors = (self.error.max, self.error.mean, self.error.p99)
        figures = "".join(f"{error:>9.2g}" for error in errors)
        limits = [f"{self.atol:g}"] if self.atol else []
        limits += [f"{100 * self.rtol:g}%"] if self.rtol else []
        return f"{name:<{_NAME}}{figures} {' or '.join(limits):>{_LIMIT}}"


def by_output(result: Result) -> Iterator[Row]:
    """Yield a table, where there are several outputs or a relative limit decided."""
    rows = [_row(result, error) for error in result.output_errors]
    # One output by the tolerance alone: the row of the error says it already.
    if len(rows) < 2 and not any(row.relative for row in rows):
        return
    rows.sort(key=lambda row: row.used, reverse=True)
    which = f"worst {MOST_OUTPUT_ROWS} of {len(rows)}" * (len(rows) > MOST_OUTPUT_ROWS)
    titles = f"{which:<{_NAME}}{'max':>9}{'mean':>9}{'99%':>9} {'limit':>{_LIMIT}}"
    yield Row("by output", titles, NEWS, Form.TABLE)
    for row in rows[:MOST_OUTPUT_ROWS]:
        yield Row("", str(row), NEWS, Form.TABLE)
    worst = rows[0].error
    if not worst.max:
        return
    place = ", ".join(map(str, worst.index))
    where = f"{printable(worst.output)}[{place}] of sample {worst.sample}"
    instead = f"{where}: {worst.got:.5g} instead of {worst.expected:.5g}"
    yield Row("", instead, EVIDENCE, Form.TABLE)


def kind_of_limit(result: Result) -> str:
    """Return "absolute" or "relative" where the limits are of one kind alone, else ""."""
    both = [_limits(result).get(kind) for kind in ("atol", "rtol")]
    atol, rtol = (isinstance(limits, Mapping) and any(limits.values()) for limits in both)
    if atol == rtol or not all(isinstance(limits, Mapping) for limits in both):
        return ""
    return "absolute" if atol else "relative"


def in_decibels(result: Result) -> str:
    """Return the error as the decibels that its metric counts, "" where it counts none.

    A run's errors grow as outputs get worse, so that those of PSNR and SNR are no decibels.
    """
    limit = result.tolerance
    if _limits(result).get("metric") not in _DECIBELS:
        return ""
    if not isinstance(limit, int | float) or limit <= 0 or result.error is None:
        return ""
    figures = [
        "inf" if error <= 0 else f"{limit - 20 * math.log10(error / limit):.4g}"
        for error in (result.error, result.error_max or result.error)
    ]
    return f"{' to '.join(dict.fromkeys(figures))} dB"


def _limits(result: Result) -> Mapping[str, Any]:
    comparator = result.fingerprint.get("comparator")
    return comparator if isinstance(comparator, Mapping) else {}


def _row(result: Result, error: OutputError) -> _Limited:
    comparator = _limits(result)

    def limit(kind: str) -> float | None:
        by_name = comparator.get(kind)
        value = by_name.get(error.output) if isinstance(by_name, Mapping) else None
        return float(value) if isinstance(value, int | float) else None

    # Only what has a relative limit has limits of the outputs' own errors.
    of_errors = "rtol" in comparator
    figures = {"mean": error.mean, "quantile": error.p99}
    return _Limited(
        error=error,
        measured=figures.get(str(comparator.get("metric")), error.max),
        atol=limit("atol") if of_errors else None,
        rtol=limit("rtol"),
        share=limit("classes"),
    )
