"""What the final screen says of culprits and rounding."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from precision_bisect.errors import counted
from precision_bisect.runs.results.advised import Advised, Tried
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import (
    Culprit,
    CurvePoint,
    Diagnosis,
    PointName,
    Result,
    Rung,
)
from precision_bisect_reports.curve import MOST_POINTS, curve, curve_words, needed
from precision_bisect_reports.speed import no_faster
from precision_bisect_reports.summary import final_screen


def point(
    count: int, error: float, name: PointName = "", latency: float | None = None
) -> CurvePoint:
    """Return a point whose copies agree."""
    return CurvePoint(
        kept_count=count, error_median=error, error_max=error, latency_ms=latency, point=name
    )


ROUNDING = Diagnosis(layer="Conv_7", cause="rounding", evidence="")


def culprit(layer: str, without: float, together: float) -> Culprit:
    """Return a culprit that overflows."""
    return Culprit(
        layer=layer,
        error_without=without,
        error_with=together,
        cause="overflow",
        evidence="reaches 1e5",
    )


POINTS = [
    point(0, 1.0, "all_low"),
    point(1, 0.064, "culprits"),
    point(64, 0.04),
    point(100, 0.03),
    point(215, 0.0099),
    point(219, 0.0095, "answer"),
]
RESULT = Result(
    status=Status.FOUND,
    backend="emulated",
    emulated=True,
    low="fp16",
    high="fp32",
    tolerance=1e-2,
    error=0.0095,
    noise_floor=0.0,
    layers_total=672,
    candidates=329,
    kept=[f"n{i}" for i in range(219)],
    rungs=[
        Rung(precision="fp32", layers=[f"n{i}" for i in range(219)], count=219),
        Rung(precision="fp16", layers=None, count=110),
    ],
    layer_precisions=None,
    layer_precisions_reason=None,
    certificate=Certificate(minimal=False, checked=(), unchecked=()),
    culprits=[culprit("BatchNormalization.1", 1.0, 0.064)],
    curve=POINTS,
    trials=9,
    builds=0,
    evaluations=19,
    wall_s=2.5,
    latency_ms=None,
    honoured=None,
    diagnosis=(),
    fingerprint={},
)


def rows_of(result: Result) -> dict[str, str]:
    """Return the rows of the curve by their labels."""
    return {row.label: row.text for row in curve(result)}


def screen(result: Result) -> str:
    """Return the screen as plain text."""
    stream = io.StringIO()
    console = Console(file=stream, soft_wrap=True, highlight=False)
    for part in final_screen(result, Path("model.onnx")):
        console.print(part)
    return stream.getvalue()


def test_a_culprit_and_the_rest() -> None:
    """The one layer with its cause and what it brings; what a looser limit and the limit take."""
    assert (
        "One layer, BatchNormalization.1, breaks FP16 (overflow: reaches 1e5): 1 -> 0.064. The "
        "rest: rounding, spread over the network: 0.03 takes about 100 layers, 0.01 219 "
        "of 329."
    ) == curve_words(replace(RESULT, diagnosis=[ROUNDING]))


def test_culprits_that_suffice() -> None:
    """Their number, some names, their causes, and that fewer do where fewer do."""
    named = [culprit(f"m/n{i}", 0.2, 0.0007) for i in range(20)]
    points = [point(0, 0.12, "all_low"), point(14, 0.0096, "answer"), point(20, 7e-4, "margin")]
    result = replace(RESULT, culprits=named, curve=points, kept=[f"m/n{i}" for i in range(14)])
    assert (
        "20 layers break FP16 (overflow), m/n0, m/n1 and 18 more: 0.12 -> 0.0007. The answer "
        "keeps 14 of them, enough for 0.01."
    ) == curve_words(result)
    assert "keeps 1 layer," in curve_words(replace(result, kept=["other"]))


def test_no_culprit() -> None:
    """Rounding is said to be spread where it is known, with what the limit takes."""
    points = [point(0, 0.02, "all_low"), point(100, 0.012), point(143, 0.009, "answer")]
    result = replace(RESULT, culprits=[], curve=points)
    takes = "0.01 takes 143 of 329."
    assert f"No single layer breaks FP16; several do together: {takes}" == curve_words(result)
    spread = "No single layer breaks FP16; rounding is spread over the network"
    assert f"{spread}: {takes}" == curve_words(replace(result, diagnosis=[ROUNDING]))


def test_no_culprit_beside_a_certificate() -> None:
    """That each layer is needed is no contradiction to what is said of them."""
    points = [point(0, 0.02, "all_low"), point(2, 0.009, "answer")]
    minimal = Certificate(minimal=True, checked=["a", "b"], unchecked=())
    result = replace(RESULT, culprits=[], curve=points, kept=["a", "b"], certificate=minimal)
    assert "No layer stands out: each of 2 layers is needed: 0.01 takes 2 of 329." == curve_words(
        result
    )


def test_one_layer_that_is_needed_is_named() -> None:
    """Of a single kept layer nothing is said in the plural."""
    points = [point(0, 0.02, "all_low"), point(1, 0.009, "answer")]
    minimal = Certificate(minimal=True, checked=["a"], unchecked=())
    result = replace(RESULT, culprits=[], curve=points, kept=["a"], certificate=minimal)
    assert "One layer, a, breaks FP16: 0.01 takes 1 of 329." == curve_words(result)
    rungs = [Rung(precision="fp32", layers=["a"], count=1)]
    shown = " ".join(screen(replace(result, candidates=1, rungs=rungs)).split())
    assert "every plan that passed keeps the one layer FP32" in shown
    assert "minimal: dropping the one layer fails, as was tried" in shown


def test_culprits_behind_the_answer_are_told() -> None:
    """Three layers are kept, and six culprits stand behind them in the table: which do is said."""
    named = [culprit(f"m/n{i}", 0.2, 0.0007) for i in range(6)]
    points = [point(0, 0.12, "all_low"), point(3, 0.0096, "answer"), point(6, 7e-4, "culprits")]
    result = replace(RESULT, culprits=named, curve=points, kept=[f"m/n{i}" for i in range(3)])
    assert "The answer keeps 3 of them, enough for 0.01." in " ".join(screen(result).split())
    listed = replace(result, kept=[f"m/n{i}" for i in range(6)])
    assert "layers break FP16" not in screen(listed)


def test_a_low_model_that_does_not_run_has_no_first_error() -> None:
    """No arrow begins with a gap, and the table says that there is none."""
    nothing = replace(POINTS[0], error_median=None, error_max=None)
    result = replace(RESULT, curve=[nothing, *POINTS[1:]])
    told = "(overflow: reaches 1e5): else FP16 does not run; in FP32 error 0.064. The rest"
    assert told in curve_words(result)
    assert "none" in rows_of(result)["worst error"].split()


def test_overflow_in_several_layers_is_not_called_rounding() -> None:
    """Where none is a culprit alone and all kept ones overflow, that is what breaks the type."""
    points = [point(0, 0.5, "all_low"), point(2, 0.009, "answer")]
    found = [Diagnosis(layer=name, cause="overflow", evidence="") for name in ("a", "b")]
    result = replace(RESULT, culprits=[], curve=points, kept=["a", "b"], diagnosis=found)
    assert curve_words(result).startswith("No single layer breaks FP16; overflow in several")


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
    assert "buys nothing here: every layer low takes 2.34 ms" in screen(
        replace(RESULT, latency_ms=times)
    )
    fast = {**times, "all_low": 1.2, "kept": 1.4}
    assert "" == no_faster(replace(RESULT, latency_ms=fast))
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
