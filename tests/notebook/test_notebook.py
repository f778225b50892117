"""Notebooks show a result as escaped HTML."""

from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.runs.results.advised import Advised
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.curve_of_result import Culprit, CurvePoint, PointName
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Diagnosis, Result, Rung
from precision_bisect.runs.results.saved import read_saved
from precision_bisect_reports.notebook import MOST_ADVICE, MOST_LAYER_ROWS, curve_svg
from run_folders import names, result_of, write_curve

DRAWN = {"svg", "path", "polyline", "circle", "title", "text"}
"""The tags of the curve, whose attributes are ours."""
HOSTILE = "</table><script>alert(1)</script><img src=x onerror='a()'>\x1b[31m&amp;\""


class Page(HTMLParser):
    """Takes HTML apart: its tags, their attributes, and the text of each cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag, which has no attributes but for figures of the picture."""
        told = {name: value for name, value in attrs if tag not in DRAWN or "<" in str(value)}
        assert told in ({}, {"style": "text-align:left"})
        assert not any(name.startswith("on") or "href" in name for name, _ in attrs)
        self.tags.append(tag)
        self.cells.append("")

    def handle_data(self, data: str) -> None:
        """Note the text of the last tag."""
        self.cells[-1] += data


def with_curve(layers: Sequence[str], tmp_path: Path, **changed: Any) -> Result:
    """Return a result with a curve."""
    return replace(read_saved(write_curve(tmp_path, layers, [0, 1])).result, **changed)


def page_of(result: Result) -> Page:
    """Return what a notebook shows."""
    return Page(result._repr_html_())


def test_the_answer_is_there() -> None:
    """Status, error against tolerance, and each layer with its type, cause and evidence."""
    cells = page_of(result_of(names(10), [2, 3])).cells
    assert "Found: 2 of 10 layers stay FP32, the rest runs in FP16" in cells
    assert "0.008, tolerance 0.01" in cells
    place = cells.index(names(10)[2])
    assert ["fp32", "overflow", "output reaches 1.41e+05"] == cells[place + 1 : place + 4]


def test_the_curve_and_what_helps_are_there(tmp_path: Path) -> None:
    """The points with their names, the tolerance, and advice in the order of the result."""
    advice = [
        Advised(id=f"{n}", title=f"title {n}", evidence=f"why {n}", passed=False)
        for n in range(MOST_ADVICE + 1)
    ]
    result = with_curve(names(10), tmp_path, advice=advice)
    page = page_of(result)
    assert {"all low: 0 kept, inf", "answer: 2 kept, 0.007", "tolerance 0.01"} <= set(page.cells)
    assert [f"title {n}" for n in range(MOST_ADVICE)] == [
        each.partition(":")[0] for each in page.cells if each.startswith("title")
    ]
    plot = result.plot()
    assert plot._repr_svg_() in result._repr_html_()
    assert plot._repr_html_() == plot.svg
    assert "<svg" not in repr(plot)
    without = replace(result, curve=())
    assert "svg" not in page_of(without).tags
    with pytest.raises(PrecisionBisectError, match="no curve; it has one where layers"):
        without.plot()


FIGURES = st.none() | st.floats(width=64)


@given(
    points=st.lists(
        st.tuples(st.integers(0, 10**400), FIGURES, FIGURES, st.sampled_from(get_args(PointName))),
        max_size=12,
    ),
    tolerance=FIGURES,
)
def test_any_figures_are_drawn_inside_the_picture(points: Any, tolerance: Any) -> None:
    """Whatever figures a file holds: the picture is well formed, and every place lies in it."""
    keys = ("kept_count", "error_median", "error_max", "point")
    curve = [CurvePoint(latency_ms=None, **dict(zip(keys, each, strict=True))) for each in points]
    result = replace(result_of(names(3), [0]), curve=curve, tolerance=tolerance)
    svg = curve_svg(result)
    assert bool(svg) == any(each.error_median is not None for each in curve)
    if not svg:
        return
    tree = fromstring(svg)
    marks = [each for each in tree if each.tag.endswith("circle")]
    assert len(marks) == sum(each.error_median is not None for each in curve)
    for mark in marks:
        assert 0 <= float(mark.attrib["cx"]) <= 640
        assert 0 <= float(mark.attrib["cy"]) <= 300
    for line in (each for each in tree if each.tag.endswith("polyline")):
        places = [tuple(map(float, each.split(","))) for each in line.attrib["points"].split()]
        assert all(0 <= x <= 640 and 0 <= y <= 300 for x, y in places)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Names, evidence, messages, notes and paths make no tags and obey no escapes."""
    advised = Advised(id=HOSTILE, title=HOSTILE, evidence=HOSTILE, passed=True)
    culprit = Culprit(layer=HOSTILE, error_without=0.1, error_with=0.02, cause=Cause.UNKNOWN)
    result = replace(
        with_curve([HOSTILE, "b"], tmp_path, kept=[HOSTILE], advice=[advised], culprits=[culprit]),
        diagnosis=[Diagnosis(layer=HOSTILE, cause=Cause.OVERFLOW, evidence=HOSTILE)],
        out=Path(HOSTILE),
        backend=HOSTILE,
    )
    page = page_of(result)
    assert {"div", "p", "b", "table", "tr", "th", "td"} == set(page.tags) - DRAWN
    shown = HOSTILE.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert 4 == page.cells.count(shown)
    assert f"{shown}: {shown}" in page.cells
    message = page_of(replace(result, status=Status.INFEASIBLE, rungs=(), message=HOSTILE))
    assert f"No plan satisfies the limits: {shown}" in message.cells


def test_the_types_of_a_ladder_are_told() -> None:
    """Each layer has the type of its rung."""
    rungs = [
        Rung(precision="fp32", layers=["a"], count=1),
        Rung(precision="fp16", layers=["b"], count=1),
        Rung(precision="int8", layers=None, count=1),
    ]
    cells = page_of(replace(result_of(["a", "b", "c"], [0, 1]), low="int8", rungs=rungs)).cells
    assert ("fp32", "fp16") == (cells[cells.index("a") + 1], cells[cells.index("b") + 1])


def test_long_lists_are_cut() -> None:
    """A notebook stays readable with thousands of layers."""
    layers = names(5000)
    page = page_of(result_of(layers, [*range(5000)]))
    assert MOST_LAYER_ROWS == sum(name in page.cells for name in layers)
    assert f"… and {5000 - MOST_LAYER_ROWS} more, all in result.json" in page.cells
