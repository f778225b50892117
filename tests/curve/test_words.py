"""What the final screen says of culprits and rounding."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import final_screens
from golden_screens import PLAN, culprit, point
from precision_bisect.errors import counted
from precision_bisect.runs.results.advised import Advised, Tried
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.result import (
    Result,
    Rung,
)
from precision_bisect.trial import Latency
from precision_bisect_reports.curve import MOST_POINTS, curve, curve_words, error_text, needed
from precision_bisect_reports.speed import no_faster

POINTS = [
    point(0, 1.0, "all_low"),
    point(1, 0.064, "culprits"),
    point(64, 0.04),
    point(100, 0.03),
    point(215, 0.0099),
    point(219, 0.0095, "answer"),
]
KEPT = [f"n{i}" for i in range(219)]
RESULT = replace(
    final_screens.RESULT,
    error=0.0095,
    candidates=329,
    kept=KEPT,
    rungs=[
        Rung(precision="fp32", layers=KEPT, count=219),
        Rung(precision="fp16", layers=None, count=110),
    ],
    certificate=Certificate(minimal=False, checked=(), unchecked=()),
    culprits=[culprit("BatchNormalization.1", 1.0, 0.064)],
    curve=POINTS,
    diagnosis=(),
)


def rows_of(result: Result) -> dict[str, str]:
    """Return the rows of the curve by their labels."""
    return {row.label: row.text for row in curve(result)}


def test_advice_that_passed_is_named() -> None:
    """The first that was tried and passes, in one line; others are in the files."""
    tried = [
        Advised(id="a", title="Do this", evidence="error 0.5, which fails", passed=False),
        Advised(
            id="b",
            title="Fuse the norm",
            evidence="",
            passed=True,
            tried=Tried(error=0.001, on_samples=True, kept=0, before=3, variants=8),
        ),
    ]
    facts = rows_of(replace(RESULT, advice=tried))
    assert "Fuse the norm: error 0.001, 0 kept" == facts["instead"]
    assert "instead" not in rows_of(replace(RESULT, advice=tried[:1]))


@pytest.mark.parametrize(
    ("on_samples", "failed", "holds", "words"),
    [
        (True, 0, True, "error 0.00996, which passes, on 10 variants, too"),
        (True, 9, False, "error 0.00996: passes on your samples, fails on 9 of 10 variants"),
        (False, 0, False, "error 0.00996, which fails"),
    ],
)
def test_what_was_tried_is_said(on_samples: bool, failed: int, holds: bool, words: str) -> None:
    """Only what passes on every variant, too, holds; where it does not, both counts are said."""
    variants = 10 * on_samples
    tried = Tried(
        error=0.00996, on_samples=on_samples, kept=0, before=3, variants=variants, failed=failed
    )
    assert (holds, words) == (tried.holds, str(tried))


def test_the_table_is_small_and_keeps_what_has_a_name() -> None:
    """At most seven points, those that a deployer would take among them."""
    many = [point(i, 1.0 / (i + 1)) for i in range(1, 30)]
    points = [*POINTS[:2], *many[1:], point(219, 0.0095, "answer"), point(225, 0.001, "margin")]
    rows = rows_of(replace(RESULT, curve=points))
    assert len(rows["kept"].split()) == len(rows["worst error"].split()) == MOST_POINTS
    assert ["all", "low", "culprits", "answer", "margin"] == rows[""].split()


def test_latencies_have_a_column_where_there_are_some() -> None:
    """Milliseconds stand below the errors of engines."""
    points = [replace(each, latency_ms=2.5) for each in POINTS]
    rows = rows_of(replace(RESULT, curve=points))
    assert ["2.5"] * len(points) == rows["ms"].split()
    assert "ms" not in rows_of(RESULT)


def test_a_low_type_that_is_no_faster_buys_nothing() -> None:
    """That is the first line under the headline; a faster one is not remarked on."""
    times = {"all_high": 2.05, "all_low": 2.34, "kept": 2.3}
    assert "buys nothing here: every layer low takes 2.34 ms" in no_faster(
        replace(RESULT, latency_ms=times)
    )
    fast = {**times, "all_low": 1.2, "kept": 1.4}
    assert "" == no_faster(replace(RESULT, latency_ms=fast))
    timed = Latency(median_ms=1.3, spread_ms=0.01, runs=9, baseline_ms=2.0, speedup=1.54)
    plan = replace(PLAN, fused=True, estimated=False, latency=timed)
    assert "" == no_faster(replace(RESULT, latency_ms=times, deploy=plan))
    within = replace(RESULT, latency_ms=fast, latency_spread_ms=0.7)
    assert "no faster than FP32: 1.4 ms, every layer high 2.05 ms, ± 0.7" in no_faster(within)


def test_an_answer_that_is_no_faster_is_told_with_how_many_layers_pay() -> None:
    """The largest plan of the curve that beats every layer high is named with its latency."""
    times = {"all_high": 24.4, "all_low": 3.1, "kept": 25.0}
    points = [
        replace(each, latency_ms=ms) for each, ms in zip(POINTS, (3.1, 4.4, 34.0), strict=False)
    ]
    said = no_faster(replace(RESULT, latency_ms=times, curve=points))
    assert (
        "This answer is no faster than FP32: 25 ms, every layer high 24.4 ms; "
        f"4.4 ms with {counted(points[1].kept_count, 'kept layer')}" == said
    )


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8), st.floats(1e-7, 2e3))
def test_what_a_level_takes_lies_between_its_points(errors: Sequence[float], level: float) -> None:
    """The count lies between the last point above the level and the first at it or below."""
    points = [point(3 * i, error) for i, error in enumerate(errors)]
    count = needed(points, level)
    below = [
        each.kept_count
        for each in points
        if each.error_max is not None and each.error_max <= level
    ]
    if not below:
        assert count is None
    else:
        assert count is not None
        assert max(0, below[0] - 3) - 1e-9 <= count <= below[0] + 1e-9


@given(st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_an_error_within_the_limit_is_not_all_that_is_said_of_what_fails(
    median: float, more: float, limit: float
) -> None:
    """A check that counts has 0 in most copies: the one over the limit is why layers are kept."""
    told = replace(point(0, median, "all_low"), error_max=median + more)
    over = median <= limit < median + more
    assert ("at worst" in error_text(told, limit)) is over
    assert "at worst" not in error_text(told, None)


def test_a_fall_from_zero_says_what_it_is() -> None:
    """`top1` is 0 in the median of copies with every layer low, and in one copy it is not."""
    counted_ones = [replace(POINTS[0], error_median=0.0, error_max=1.0), point(1, 0.0, "culprits")]
    found = replace(RESULT, tolerance=0.0, curve=counted_ones, culprits=[culprit("Top", 1.0, 0.0)])
    assert ": 0, at worst 1 -> 0." in curve_words(found)
