"""What the final screen says of the certificate, and of how an answer holds."""

from dataclasses import replace

from final_screens import KEPT, RESULT, need, screen, words
from precision_bisect.runs.results.certificates import Certificate, Forecasts, Uncertified
from precision_bisect.trial import Stability
from precision_bisect_reports.notebook import as_html

FORECASTS = Forecasts(builds=12, right=12, drawn=2, wrong_at_most=1, confidence=0.9)


def test_what_a_certificate_rests_on_is_said() -> None:
    """Layers by builds and by forecasts are told apart, with how often forecasts were right."""
    evidence = [need(name, True, "dropped") for name in KEPT[:3]]
    evidence.append(need(KEPT[3], None, "predicted"))
    certificate = Certificate(
        minimal=False, checked=KEPT[:3], unchecked=(), evidence=evidence, forecasts=FORECASTS
    )
    expected = (
        "minimal by builds and forecasts: 4 needed, 3 by builds, "
        "1 by forecasts that were right in 12 of 12 builds; 90% confident that at most 1 can go"
    )
    assert expected in words(replace(RESULT, certificate=certificate))
    assert "minimal by builds and forecasts" in as_html(replace(RESULT, certificate=certificate))


def test_drops_that_fail_on_copies_alone_are_told() -> None:
    """The samples as given pass them: so many, all, or the one."""
    for alone, kept, expected in (
        (1, 3, "any one of the 3 fails, each was tried; on the samples as given 1 of them pass"),
        (2, 2, "any one of the 2 fails, each was tried; on the samples as given all pass"),
        (1, 1, "the one layer fails, as was tried; on the samples as given it passes"),
    ):
        evidence = [
            replace(need(name, True, "dropped"), fails_on="copies" if i < alone else "samples")
            for i, name in enumerate(KEPT[:kept])
        ]
        certificate = Certificate(
            minimal=True, checked=KEPT[:kept], unchecked=(), evidence=evidence
        )
        said = words(replace(RESULT, certificate=certificate))
        assert f"minimal: dropping {expected}, and on copies with slight changes not" in said


def test_a_limit_that_forecasts_are_below_is_named() -> None:
    """A drop that passes by the tolerance and not by the limit leaves it minimal by the limit."""
    evidence = [replace(need(name, True, "dropped"), needed_at_limit=True) for name in KEPT[:2]]
    evidence.append(replace(need(KEPT[2], False, "dropped"), needed_at_limit=True))
    evidence.append(need(KEPT[3], None, "predicted"))
    certificate = Certificate(
        minimal=False,
        checked=KEPT[:2],
        unchecked=KEPT[2:3],
        evidence=evidence,
        forecasts=FORECASTS,
        limit=0.009,
    )
    said = words(replace(RESULT, certificate=certificate))
    assert "minimal below 0.009 by builds and forecasts: 4 needed, 3 by builds, 1 by" in said


def test_what_is_not_proven_is_counted_by_its_reason() -> None:
    """A forecast, a drop that passed, a build that failed, what the budget left: each is said."""
    evidence = [
        need("a", True, "dropped"),
        need("b", None, "predicted"),
        need("c", None, "predicted"),
        need("d", False, "dropped"),
        need("e", None, None, "build_failed: no implementation: sorry"),
        need("f", None, None, "the budget was spent"),
    ]
    certificate = Certificate(
        minimal=False,
        checked=["a"],
        unchecked=[each.layer for each in evidence[3:]],
        mode="forecasts",
        evidence=evidence,
        forecasts=FORECASTS,
    )
    assert (
        "not proven minimal: 1 of 6 drops were tried and failed, 2 forecast to fail, "
        "1 could go, 1 not tested (build_failed), 1 not tested (the budget was spent)"
    ) in words(replace(RESULT, certificate=certificate))


def test_a_limit_below_the_tolerance_is_named() -> None:
    """What is minimal below a limit for the noise, and not by the tolerance, is called so."""
    evidence = [replace(need(name, True, "dropped"), needed_at_limit=True) for name in KEPT[:3]]
    evidence.append(replace(need(KEPT[3], False, "dropped"), needed_at_limit=True))
    certificate = Certificate(
        minimal=False, checked=KEPT[:3], unchecked=KEPT[3:], evidence=evidence, limit=0.009
    )
    expected = (
        "minimal below 0.009, which leaves room for the noise; "
        "by the tolerance itself 3 of 4 are needed"
    )
    assert expected in words(replace(RESULT, certificate=certificate))


def test_unproven_minimality_is_said() -> None:
    """What was not certified is counted."""
    certificate = Certificate(minimal=False, checked=KEPT[:1], unchecked=KEPT[1:])
    assert "not proven minimal: 1 of 4" in screen(replace(RESULT, certificate=certificate))


def test_an_answer_that_was_widened_is_not_called_minimal() -> None:
    """What luck decides is not counted as unproven, layer by layer."""
    why = Uncertified.SPREAD
    certificate = Certificate(minimal=False, checked=(), unchecked=KEPT, uncertified=why)
    said = screen(replace(RESULT, certificate=certificate))
    assert "none: more layers may be kept than needed" in said
    assert "minimal" not in said


def test_how_an_answer_holds_is_said() -> None:
    """The share of copies that it holds on, and the worst error on them, not on other samples."""
    stability = Stability(copies=16, failed=1, error_median=0.0095, error_max=0.0123, jitter=0.1)
    said = screen(replace(RESULT, error=0.0456, stability=stability))
    assert "in 15 of 16 checks with slight changes" in said
