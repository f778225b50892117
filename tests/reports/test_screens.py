"""One page of a result: the golden screen, and the same facts in the report and in notebooks."""

from html import escape

import pytest

from final_screens import screen
from golden_screens import cases, golden
from precision_bisect.runs.results.result import Result
from precision_bisect_reports.html.answer import answer_section
from precision_bisect_reports.html.source import Source
from precision_bisect_reports.notebook import as_html
from precision_bisect_reports.page_model import page_of
from precision_bisect_reports.rows import Form

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
    report += [answer["message"], answer["inputs"]]
    assert page.title == answer["title"]
    assert escape(page.headline) in notebook
    for row in page.rows:
        if row.form in (Form.FACT, Form.REMARK):
            assert row.text in report
        if row.form in (Form.FACT, Form.FIGURE):
            assert f"<th>{row.label}</th><td>{escape(row.text)}</td>" in notebook
    for warning in page.warnings:
        assert warning in report
        assert escape(warning) in notebook
