"""The curve as a picture: SVG without scripts, of figures and words of ours alone.

It looks as in the report, which draws with a library of its own; its ink is the notebook's.
"""

import math
from collections.abc import Iterator, Sequence

from precision_bisect.errors import counted
from precision_bisect.runs.results.result import CurvePoint, Result
from precision_bisect_reports.curve import figure_text, point_name

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 628, 30, 254
"""Where the axes end, in pixels."""
_COUNTS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000)
_DECADES = 12
_LABELS = 5
"""About so many decades have a label."""
_LINE, _LABEL = 14, 90
"""The height of a line of text, and about the width of a label."""
_LOW, _KEPT = "#1a78c2", "#c2570c"


def curve_svg(result: Result) -> str:
    """Return the error by the number of kept layers, both logarithmic; "" without a figure."""
    points = [each for each in result.curve if each.error_median is not None]
    if not points:
        return ""
    frame = _Frame(points, result.limit)
    parts = [*_axes(frame), *_tolerance(frame, result.limit)]
    parts += [_line(frame, points, worst=False), _line(frame, points, worst=True)]
    parts += [*(_mark(frame, each) for each in points), *_labels(frame, points)]
    named = 'role="img" aria-label="Error by the number of kept layers"'
    style = f"width:100%;max-width:{_WIDTH}px;font:12px sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {named} '
        f'fill="currentColor" style="{style}">{"".join(parts)}</svg>'
    )


class _Frame:
    """Where errors and counts stand; 0 is below all decades, and what is not finite above."""

    def __init__(self, points: Sequence[CurvePoint], limit: float | None) -> None:
        errors = [error for each in points for error in (each.error_median, each.error_max)]
        finite = [math.log10(e) for e in (*errors, limit) if e is not None and 0 < e < math.inf]
        self.top = math.floor(max(finite, default=0)) + 1
        self.foot = max(math.floor(min(finite, default=-1)), self.top - _DECADES)
        self.most = max(each.kept_count for each in points)
        self._above = any(error is not None and not error < math.inf for error in errors)
        self._below = any(error is not None and error <= 0 for error in errors)

    def y(self, error: float) -> float:
        """Return the place of an error, in pixels from the top."""
        if not error < math.inf:
            return self.level(self.top + 1)
        power = math.log10(error) if error > 0 else -math.inf
        return self.level(max(power, self.foot) if error > 0 else self.foot - 1)

    def level(self, power: float) -> float:
        """Return the place of a power of ten."""
        top, foot = self.top + self._above, self.foot - self._below
        return _TOP + (top - power) / (top - foot) * (_BOTTOM - _TOP)

    def x(self, count: int) -> float:
        """Return the place of a number of kept layers, in pixels from the left."""
        return _LEFT + math.log10(count + 1) / math.log10(max(self.most, 1) + 1) * (_RIGHT - _LEFT)


def _axes(frame: _Frame) -> Iterator[str]:
    """Yield both axes, their names, and a legend of the lines."""
    yield (
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="currentColor" '
        'opacity=".5"/>'
    )
    step = max(1, (frame.top - frame.foot) // _LABELS)
    for power in range(frame.foot, frame.top + 1, step):
        yield _text(_LEFT - 6, frame.level(power) + 4, f"1e{power}", "end")
    for count in (each for each in _COUNTS if each <= frame.most):
        yield _text(frame.x(count), _BOTTOM + _LINE + 2, f"{count:,}", "middle")
    yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, "layers kept (log)", "middle")
    yield _text(4, _TOP - 12, "error (log)", "start")
    yield _text(_RIGHT, _TOP - 12, "solid: median of copies, dashed: worst", "end")


def _tolerance(frame: _Frame, limit: float | None) -> Iterator[str]:
    if limit is not None:
        y = frame.y(limit)
        yield (
            f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="currentColor" stroke-dasharray="6 4"/>'
        )
        yield _text(_LEFT + 6, y + _LINE, f"tolerance {limit:.3g}", "start")


def _line(frame: _Frame, points: Sequence[CurvePoint], *, worst: bool) -> str:
    errors = ((each.kept_count, each.error_max if worst else each.error_median) for each in points)
    places = [f"{frame.x(count):.1f},{frame.y(e):.1f}" for count, e in errors if e is not None]
    dashed = ' stroke-dasharray="3 3"' if worst else ""
    return f'<polyline points="{" ".join(places)}" fill="none" stroke="{_LOW}"{dashed}/>'


def _mark(frame: _Frame, point: CurvePoint) -> str:
    """Return a mark, larger where the point has a name; the pointer over it tells the figures."""
    assert point.error_median is not None
    x, y = frame.x(point.kept_count), frame.y(point.error_median)
    size, colour = (6, _KEPT) if point.point else (3, _LOW)
    said = f"{counted(point.kept_count, 'layer')} kept, median {figure_text(point.error_median)}"
    worst = f", worst {figure_text(point.error_max)}" if point.error_max is not None else ""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}">'
        f"<title>{said}{worst}</title></circle>"
    )


def _labels(frame: _Frame, points: Sequence[CurvePoint]) -> Iterator[str]:
    """Yield names where the falling curve is not: above and to the right, at its end opposite."""
    taken: list[tuple[float, float]] = []
    for point in (each for each in points if each.point and each.error_median is not None):
        x, y = frame.x(point.kept_count), frame.y(point.error_median or 0.0)
        last = x > _LEFT + 0.8 * (_RIGHT - _LEFT)
        side = 1 if last and y + 2 * _LINE < _BOTTOM else -1
        x, y = x - 8 if last else x + 8, y + side * _LINE
        while any(abs(x - a) < _LABEL and abs(y - b) < _LINE for a, b in taken):
            y += side * _LINE
        taken.append((x, y))
        said = f"{point_name(point)}: {point.kept_count}"
        yield _text(x, y, said, "end" if last else "start")


def _text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{said}</text>'
