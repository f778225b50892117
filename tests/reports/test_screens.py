"""One page of a result: the golden screen, and the same facts in the report and in notebooks."""

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from final_screens import RESULT, screen, words
from golden_screens import cases, golden
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect_reports.html.answer import answer_section
from precision_bisect_reports.html.source import Source
from precision_bisect_reports.notebook import CELL, as_html
from precision_bisect_reports.page_model import page_of
from precision_bisect_reports.rows import Form
from precision_bisect_reports.summary import MOST_LINES, WIDTH

CASES = {str(name): result for name, result in cases()}


@pytest.mark.parametrize(("name", "result"), CASES.items(), ids=CASES)
def test_the_screen_is_the_golden_one(name: str, result: Result) -> None:
    """Each line is as it was: what is said, in which order, and what to do next."""
    assert golden()[name] == screen(result).rstrip("\n")


def test_no_screen_is_left_over() -> None:
    """The file has the screens of these endings and no others."""
    assert [*CASES] == [*golden()]


@pytest.mark.parametrize("result", CASES.values(), ids=CASES)
def test_every_page_has_the_same_facts(result: Result) -> None:
    """No page words a fact by itself, or leaves one out that has no chart there."""
    page, notebook = page_of(result), as_html(result)
    answer = answer_section(Source(searches=(), result=result))
    report = [*(text for _, text in answer["facts"]), *answer["remarks"]]
    report += [answer["message"]]
    assert page.title == answer["title"]
    assert escape(page.headline) in notebook
    for row in page.rows:
        assert row.text or row.form is Form.KEPT
        if row.form in (Form.FACT, Form.REMARK):
            assert row.text in report
        if row.form in (Form.FACT, Form.FIGURE):
            assert f"<th>{row.label}</th>{CELL}{escape(row.text)}</td>" in notebook
    assert page.banner == answer["banner"]
    assert escape(page.banner) in notebook


@pytest.mark.parametrize(("name", "shown"), golden().items(), ids=golden())
def test_the_screen_is_read_at_one_glance(name: str, shown: str) -> None:
    """At most 25 lines of 80 columns: a long list of kept layers becomes patterns and a count."""
    lines = shown.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH


NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=90)


@given(st.lists(NAMES, min_size=1, max_size=12, unique=True), st.integers(40, 120))
def test_names_are_shortened_and_not_broken(names: Sequence[str], width: int) -> None:
    """Whatever layers are called: lines fit, and of a name that does not, both ends are there."""
    result = replace(RESULT, kept=[f"/{name}" for name in names], rungs=())
    facts = screen(result, width=width).partition("\n\n")[0].splitlines()
    assert max(map(cell_len, facts)) <= width
    shown = {word.rstrip(",:") for line in facts for word in line.split()}
    for word in (word for word in shown if word.startswith("/")):
        head, mark, tail = word.partition("…")
        assert any(
            f"/{name}".startswith(head) and (not mark or name.endswith(tail.rstrip(",:")))
            for name in names
        ) or "…" in "".join(names)


@pytest.mark.parametrize("width", [40, 60, 120])
@pytest.mark.parametrize("result", CASES.values(), ids=CASES)
def test_no_word_is_broken(result: Result, width: int) -> None:
    """Each word of a narrow screen is one of the wide screen, and can be copied."""
    wide = "".join(screen(result, width=500, most=most) for most in (math.inf, MOST_LINES, 8))
    narrow = screen(result, width=width)
    words = (word for word in narrow.split() if not word.isdigit())
    assert {*words} <= {*wide.split(), "\\", "…", "more"}
    assert len(narrow.splitlines()) <= MOST_LINES or width < 60


FP32_WINS = {
    n: result for n, result in CASES.items() if result.fp32_wins and not result.gains_nothing
}


@pytest.mark.parametrize("result", FP32_WINS.values(), ids=FP32_WINS)
def test_where_fp32_is_to_be_deployed_what_is_built_is_named(result: Result) -> None:
    """Who reads "deploy FP32", then "build", would ship the mixed plan for it."""
    kept = result.deploy is not None and result.deploy.kept
    assert f"the {'mixed plan' if kept else 'FP16 model'} (strong10" in words(result)
    assert result.deploy is not None
    low = replace(result.deploy, kept=())
    all_low = replace(result, kept=(), deploy=low, status=Status.NOTHING_TO_KEEP)
    assert "the FP16 model (strong10" in words(all_low)
    everything = words(replace(result, candidates=len(result.kept)))
    assert "deploy FP32" in everything and "as fast as the fe" not in everything
