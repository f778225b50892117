"""Notebooks show a result as escaped HTML."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Diagnosis, Inputs, Result, Rung
from precision_bisect_reports.notebook import MOST_LAYER_ROWS
from run_folders import names, result_of

HOSTILE = "</table><script>alert(1)</script><img src=x onerror='a()'>\x1b[31m&amp;\""


class Page(HTMLParser):
    """Takes HTML apart: its tags, their attributes, and the text of each cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag, which has no attributes."""
        assert [] == attrs
        self.tags.append(tag)
        self.cells.append("")

    def handle_data(self, data: str) -> None:
        """Note the text of the last tag."""
        self.cells[-1] += data


def page_of(result: Result) -> Page:
    """Return what a notebook shows."""
    return Page(result._repr_html_())


def test_made_up_inputs_are_said() -> None:
    """A notebook tells that real inputs may reach other ranges."""
    inputs = Inputs(synthetic=True, samples=4)
    cells = page_of(result_of(names(10), [2], inputs=inputs)).cells
    assert "made up: real ones may reach other ranges" in cells


def test_the_answer_is_there() -> None:
    """Status, error against tolerance, and each layer with its type, cause and evidence."""
    cells = page_of(result_of(names(10), [2, 3])).cells
    assert "found: 2 of 10 layers kept above FP16" in cells
    assert "0.008, tolerance 0.01" in cells
    place = cells.index(names(10)[2])
    assert ["fp32", "overflow", "output reaches 1.41e+05"] == cells[place + 1 : place + 4]


def test_hostile_text_stays_text() -> None:
    """Names, evidence, messages, notes and paths make no tags and obey no escapes."""
    result = replace(
        result_of([HOSTILE], [0]),
        diagnosis=[Diagnosis(layer=HOSTILE, cause=HOSTILE, evidence=HOSTILE)],
        out=Path(HOSTILE),
        backend=HOSTILE,
    )
    page = page_of(result)
    assert {"div", "p", "b", "table", "tr", "th", "td"} == set(page.tags)
    shown = HOSTILE.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert 4 == page.cells.count(shown)
    message = page_of(replace(result, status=Status.INFEASIBLE, rungs=(), message=HOSTILE))
    assert f"infeasible: {shown}" in message.cells


def test_the_types_of_a_ladder_are_told() -> None:
    """Each layer has the type of its rung."""
    rungs = [
        Rung(precision="fp32", layers=["a"], count=1),
        Rung(precision="fp16", layers=["b"], count=1),
        Rung(precision="int8", layers=None, count=1),
    ]
    cells = page_of(replace(result_of(["a", "b", "c"], [0, 1]), low="int8", rungs=rungs)).cells
    assert ("fp32", "fp16") == (cells[cells.index("a") + 1], cells[cells.index("b") + 1])


@pytest.mark.parametrize("status", Status)
def test_every_ending_is_shown(status: Status) -> None:
    """A run without an answer, a check without figures and several limits have words, too."""
    result = replace(result_of([], []), status=status, error=None, tolerance=None, rungs=())
    assert f"{status.value.replace('_', ' ')}: " in page_of(result).cells
    several = replace(result_of([], []), status=status, tolerance={"atol": {"y": 1.0}})
    assert "0.008, tolerance 1, as a multiple of the limits" in page_of(several).cells


def test_long_lists_are_cut() -> None:
    """A notebook stays readable with thousands of layers."""
    layers = names(5000)
    page = page_of(result_of(layers, [*range(5000)]))
    assert MOST_LAYER_ROWS == sum(name in page.cells for name in layers)
    assert f"… and {5000 - MOST_LAYER_ROWS} more, all in result.json" in page.cells
