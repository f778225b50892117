"""The last screen has the errors by output, where one figure for all does not tell them."""

from dataclasses import replace
from typing import Any

import pytest

from final_screens import RESULT, screen
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import OutputError
from precision_bisect_reports.by_output import by_output

BOXES = OutputError(
    output="boxes",
    max=0.5,
    mean=0.02,
    p99=0.25,
    elements=400,
    differing=390,
    sample=1,
    index=(0, 12, 3),
    expected=412.25,
    got=411.75,
)
SCORES = replace(BOXES, output="scores", max=2e-4, index=(7,), expected=0.25, got=0.2502)
LABELS = replace(BOXES, output="labels", differing=3, max=4000.0)


def judged(*errors: OutputError, **limits: Any) -> Result:
    """Return a result with these errors and limits."""
    comparator = {"metric": "elementwise", **limits}
    return replace(RESULT, output_errors=errors, fingerprint={"comparator": comparator})


def rows(result: Result) -> list[str]:
    """Return the rows of the table, without the spaces between columns."""
    return [" ".join(text.split()) for _, text, _ in by_output(result)]


def test_several_outputs_have_a_row_each() -> None:
    """The one that takes up most of its limit stands first, and has its worst place below."""
    limits = {"boxes": 1.0, "scores": 0.01}
    result = judged(SCORES, BOXES, atol=limits, rtol={"boxes": 0.0, "scores": 0.01})
    expected = [
        "max mean 99% limit",
        "boxes 0.5 0.02 0.25 1",
        "scores 0.0002 0.02 0.25 0.01 or 1%",
        "boxes[0, 12, 3] of sample 1: 411.75 instead of 412.25",
    ]
    assert expected == rows(result)
    assert "by output" in screen(result)


def test_columns_stay_apart_and_fit_the_screen() -> None:
    """The longest limits and figures leave a space, and no row is broken."""
    limit = {"boxes": 0.000125}
    result = judged(replace(BOXES, max=1.25e-05, p99=0.000123), atol=limit, rtol=limit)
    result = replace(result, output_errors=[*result.output_errors, SCORES])
    assert "boxes 1.3e-05 0.02 0.00012 0.000125 or 0.0125%" in rows(result)
    assert "0.000125 or 0.0125%\n" in screen(result)


@pytest.mark.parametrize(
    ("atol", "rtol", "shown"),
    [(1.0, 0.0, False), (0.01, 0.01, True), (0.0, 0.01, True), (0.6, 0.01, False)],
)
def test_one_output_has_a_row_where_a_share_decided(atol: float, rtol: float, shown: bool) -> None:
    """Beyond its absolute limit it has passed by the relative one, and half a pixel is said."""
    result = judged(BOXES, atol={"boxes": atol}, rtol={"boxes": rtol})
    assert shown is bool(rows(result))


def test_the_metric_says_which_error_has_the_limit() -> None:
    """By the mean, a single large error is no reason to speak of a share."""
    result = judged(BOXES, metric="mean", atol={"boxes": 0.03}, rtol={"boxes": 0.03})
    assert [] == rows(result)


def test_classes_are_counted() -> None:
    """Of classes a difference says nothing; how many differ does."""
    result = judged(
        LABELS, BOXES, atol={"boxes": 1.0}, rtol={"boxes": 0.0}, classes={"labels": 0.02}
    )
    assert "labels 3 of 400 differ 2%" in rows(result)
    exact = replace(LABELS, differing=0)
    result = judged(
        exact, BOXES, atol={"boxes": 1.0}, rtol={"boxes": 0.0}, classes={"labels": 0.0}
    )
    assert "labels 0 of 400 differ exact" in rows(result)


def test_a_check_has_no_limits_by_output() -> None:
    """Its outputs have errors, and no limit stands beside them."""
    result = judged(SCORES, BOXES, metric=None, check="metric.py:f", tolerance=0.1)
    assert "boxes 0.5 0.02 0.25" in rows(result)


def test_decibels_are_no_limit_of_errors() -> None:
    """A limit of another unit is not put beside absolute errors."""
    result = judged(SCORES, BOXES, metric="psnr", atol={"boxes": 40.0, "scores": 40.0})
    assert not any("40" in each for each in rows(result))


def test_many_outputs_leave_room() -> None:
    """Three rows are shown with how many there are, in at most 25 lines."""
    many = [replace(SCORES, output=f"a/rather/long/name/of/output/{n}") for n in range(40)]
    result = judged(*many, BOXES, atol={"boxes": 1.0}, rtol={"boxes": 0.0})
    assert rows(result)[0].startswith("worst 3 of 41 max")
    lines = screen(result).splitlines()
    assert 25 >= len(lines)
    assert 80 >= max(len(line) for line in lines if "precision-bisect" not in line)


@pytest.mark.parametrize(
    "comparator", [None, 3, {"atol": 3}, {"atol": {"boxes": "x"}, "rtol": []}]
)
def test_what_a_file_says_wrongly_is_no_traceback(comparator: Any) -> None:
    """A result of anybody's may hold anything as its settings."""
    result = replace(RESULT, output_errors=(BOXES, SCORES), fingerprint={"comparator": comparator})
    assert "boxes 0.5 0.02 0.25" in rows(result)


def test_hidden_characters_do_not_reach_the_terminal() -> None:
    """Names of outputs come from the file."""
    result = judged(replace(BOXES, output="bo\x1b[2Jxes"), SCORES)
    assert "\x1b" not in screen(result)
