"""What the final screen says of the certificate, and of how an answer holds."""

from dataclasses import replace

from final_screens import KEPT, RESULT, need, screen, words
from precision_bisect.results.result import SPREAD, Certificate
from precision_bisect.trial import Stability


def test_what_a_certificate_rests_on_is_said() -> None:
    """Drops that were tried and needs that are implied are told apart, with the assumption."""
    evidence = [need(name, True, "dropped") for name in KEPT[:3]]
    evidence.append(need(KEPT[3], True, "implied"))
    certificate = Certificate(
        minimal=False, checked=KEPT, unchecked=(), evidence=evidence, assumes="monotone"
    )
    expected = (
        "all are needed if keeping more never hurts: 3 of 4 drops were tried and failed, "
        "1 by plans that kept more"
    )
    assert expected in words(replace(RESULT, certificate=certificate))


def test_what_is_not_proven_is_counted_by_its_reason() -> None:
    """A group, a drop that passed, a build that failed, what the budget left: each is said."""
    evidence = [
        need("a", True, "dropped"),
        need("b", None, "group"),
        need("c", None, "group"),
        need("d", False, "dropped"),
        need("e", None, None, "build_failed: no implementation: sorry"),
        need("f", None, None, "the budget was spent"),
        need("g", None, "implied", "it does not count"),
    ]
    certificate = Certificate(
        minimal=False,
        checked=["a"],
        unchecked=[each.layer for each in evidence[1:]],
        mode="groups",
        evidence=evidence,
    )
    assert (
        "not proven minimal: 1 of 7 drops were tried and failed, 2 failed in a group, "
        "1 could go, 1 not tested (build_failed), 1 not tested (the budget was spent), "
        "1 only by plans that kept more"
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
    evidence = [need(name, None, None, SPREAD) for name in KEPT]
    certificate = Certificate(minimal=False, checked=(), unchecked=KEPT, evidence=evidence)
    said = screen(replace(RESULT, certificate=certificate))
    assert "none: more layers may be kept than needed" in said
    assert "minimal" not in said


def test_how_an_answer_holds_is_said() -> None:
    """The share of copies that it holds on, with the median and the worst error."""
    stability = Stability(copies=16, failed=1, error_median=0.0095, error_max=0.0123, jitter=0.1)
    said = screen(replace(RESULT, stability=stability))
    assert "in 15 of 16 checks with slight changes, worst error 0.0123" in said
