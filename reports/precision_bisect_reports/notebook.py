"""A result as notebooks show it: a small piece of HTML, without scripts, and the curve as SVG.

Layer names and messages come from an untrusted file, so every text is escaped.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice
from typing import NamedTuple

from precision_bisect.errors import printable
from precision_bisect.runs.results.curve_of_result import CurvePoint
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect_reports.curve import curve_words, error_text, figure_text, point_name
from precision_bisect_reports.page_model import page_of
from precision_bisect_reports.rows import Form
from precision_bisect_reports.speed import mark_in_charts

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 628, 30, 254
"""Where the axes end, in pixels of 640 x 300."""
_COUNTS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000)
_DECADES = 12
_LINE, _LABEL = 14, 160
"""The height of a line of text, and about the width of a label."""
_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 300" fill="currentColor" role="img" '
    'aria-label="Error by the number of kept layers" '
    'style="width:100%;max-width:640px;font:12px sans-serif">'
)


def curve_svg(result: Result) -> str:
    """Return the error by the number of kept layers, both logarithmic; "" without a figure."""
    points = [point for point in result.curve if point.error_median is not None]
    if not points:
        return ""
    marks = [
        _Mark(
            point.kept_count,
            point.error_median or 0.0,
            point_name(point),
            error_text(point, result.limit),
        )
        for point in points
    ]
    plan = None if result.deploys_fewest else result.deploy
    if plan is not None and plan.error is not None:
        name = mark_in_charts(result)
        marks.append(_Mark(len(plan.kept), plan.error, name, figure_text(plan.error)))
    return f"{_SVG}{''.join(_drawn(points, marks, result.limit))}</svg>"


class _Mark(NamedTuple):
    """A plan with its error, its name, "" for none, and what is said of the error."""

    kept_count: int
    error: float
    name: str
    error_words: str


class _Frame:
    """Where errors and counts stand, in pixels from the top and from the left."""

    def __init__(
        self, points: Sequence[CurvePoint], marks: Sequence[_Mark], limit: float | None
    ) -> None:
        errors = [*(point.error_max for point in points), *(mark.error for mark in marks)]
        powers = [math.log10(e) for e in (*errors, limit) if e is not None and 0 < e < math.inf]
        self.top = math.floor(max(powers, default=0)) + 1
        self.foot = max(math.floor(min(powers, default=-1)), self.top - _DECADES)
        self.most = max(1, *(mark.kept_count for mark in marks))

    def y(self, error: float) -> float:
        """Return the place of an error: 0 is at the foot, and what is not finite at the top."""
        if not error < math.inf:
            return _TOP
        return self.level(max(math.log10(error), self.foot) if error > 0 else self.foot)

    def level(self, power: float) -> float:
        """Return the place of a power of ten."""
        return _TOP + (self.top - power) / (self.top - self.foot) * (_BOTTOM - _TOP)

    def x(self, count: int) -> float:
        """Return the place of a number of kept layers."""
        return _LEFT + math.log10(count + 1) / math.log10(self.most + 1) * (_RIGHT - _LEFT)


def _drawn(
    points: Sequence[CurvePoint], marks: Sequence[_Mark], limit: float | None
) -> Iterator[str]:
    """Yield axes, the tolerance, the lines of medians and of worst errors, and marks."""
    frame = _Frame(points, marks, limit)
    yield f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="currentColor"/>'
    for power in range(frame.foot, frame.top + 1, max(1, (frame.top - frame.foot) // 5)):
        yield _label(_LEFT - 6, frame.level(power) + 4, f"1e{power}", "end")
    for count in (tick for tick in _COUNTS if tick <= frame.most):
        yield _label(frame.x(count), _BOTTOM + _LINE + 2, f"{count}", "middle")
    yield _label(_RIGHT, 292, "layers kept", "end")
    yield _label(4, 14, "error: median of copies, dashed the worst", "start")
    if limit is not None:
        y = frame.y(limit)
        yield f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="currentColor" stroke-dasharray="6 4"/>'
        yield _label(_LEFT + 6, y + _LINE, f"tolerance {limit:.3g}", "start")
    for key, dashes in (("error_median", "none"), ("error_max", "3 3")):
        errors = ((point.kept_count, getattr(point, key)) for point in points)
        line = " ".join(f"{frame.x(n):.1f},{frame.y(e):.1f}" for n, e in errors if e is not None)
        style = f'fill="none" stroke="#1a78c2" stroke-dasharray="{dashes}"'
        yield f'<polyline points="{line}" {style}/>'
    yield from _marks(frame, marks)


def _marks(frame: _Frame, marks: Sequence[_Mark]) -> Iterator[str]:
    """Yield the points; names stand where the falling curve is not, those at its end below it."""
    labels: list[tuple[float, float]] = []
    for kept_count, error, name, error_words in marks:
        x, y = frame.x(kept_count), frame.y(error)
        style = 'r="6" fill="#c2570c"' if name else 'r="3" fill="#1a78c2"'
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" {style}/>'
        if not name:
            continue
        last = x > (_LEFT + _RIGHT) / 2
        side = 1 if last and y + 2 * _LINE < _BOTTOM else -1
        x, y = x - 8 if last else x + 8, y + side * _LINE
        # Names that would lie on each other move apart.
        while any(abs(x - a) < _LABEL and abs(y - b) < _LINE for a, b in labels):
            y += side * _LINE
        labels.append((x, y))
        label = f"{name}: {kept_count} kept, {error_words}"
        yield _label(x, y, label, "end" if last else "start")


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


CELL = '<td style="text-align:left">'
"""The start of a cell: Jupyter sets the text of tables at their right."""
MOST_ADVICE = 3
"""So much advice is shown, the most helpful first; the report has all."""
MOST_LAYER_ROWS = 60
"""Most layers that are listed; the result itself has all."""


def as_html(result: Result, *, curve_alone: bool = False) -> str:
    """Return how the run ended, the error, the curve, what helps, and why each layer is kept.

    With `curve_alone` it is the curve, as SVG, "" where there is none.
    """
    curve = curve_svg(result)
    if curve_alone:
        return curve
    page = page_of(result)
    facts = [(row.label, row.text) for row in page.rows if row.form in (Form.FIGURE, Form.FACT)]
    if result.out is not None:
        facts.append(("run folder", str(result.out)))
    parts = [f"<p><b>{_text(text)}</b></p>" for text in (page.headline, page.banner) if text]
    table = "".join(f"<tr><th>{name}</th>{CELL}{_text(text)}</td></tr>" for name, text in facts)
    parts.append(f"<table>{table}</table>")
    if curve:
        parts.append(f"<p>{_text(curve_words(result))}</p>{curve}")
    for advice in result.advice[:MOST_ADVICE]:
        parts.append(f"<p><b>{_text(advice.title)}</b>: {_text(advice.evidence)}</p>")
    if result.kept:
        head = "<tr><th>layer</th><th>type</th><th>cause</th><th>evidence</th></tr>"
        rows = "".join(
            f"<tr>{''.join(f'{CELL}{_text(cell)}</td>' for cell in cells)}</tr>"
            for cells in _layers(result)
        )
        parts.append(f"<table>{head}{rows}</table>")
    if len(result.kept) > MOST_LAYER_ROWS:
        parts.append(f"<p>… and {len(result.kept) - MOST_LAYER_ROWS} more, all in {RESULT}</p>")
    return f"<div>{''.join(parts)}</div>"


def _layers(result: Result) -> Iterator[tuple[str, ...]]:
    causes = result.causes
    for name, precision in islice(result.precisions.items(), MOST_LAYER_ROWS):
        diagnosis = causes.get(name)
        why = ("", "") if diagnosis is None else (diagnosis.cause, diagnosis.evidence)
        yield (name, precision, *why)


def _text(text: str) -> str:
    return escape(printable(text))
