"""Borderline layers: by what the search paid for one, and what the emulator said of it alone."""

import math

import pytest

from precision_bisect.pipeline.explanation import MOST_BORDERLINE, Borderline, borderline_layers
from precision_bisect.plan import Plan
from precision_bisect.trial import (
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
    Verdict,
)

NAMES = [f"n{i}" for i in range(10)]


def trial(kept: list[int], error: float, phase: Phase = Phase.SEARCH) -> Trial:
    """Return a trial of a plan; it passes up to an error of 1."""
    ranked = phase is Phase.RANKING
    return Trial(
        proposal=Proposal(
            plan=Plan.of(kept),
            phase=phase,
            samples=SampleSet.RANKING if ranked else SampleSet.JUDGED,
            kind=Kind.PREDICT if ranked else Kind.JUDGE,
        ),
        outcome=Outcome(
            status=TrialStatus.FINISHED,
            verdict=Verdict.PASS if error <= 1 else Verdict.FAIL,
            error=error,
        ),
    )


def without(*dropped: int) -> list[int]:
    """Return all layers but these."""
    return [i for i in range(len(NAMES)) if i not in dropped]


def found(
    trials: list[Trial], kept: list[str] | None = None, tolerance: float | None = 1.0
) -> dict[str, Borderline]:
    """Return the borderline layers of these trials."""
    return borderline_layers(NAMES, kept or [], trials, tolerance=tolerance, error=0.75)


def test_a_drop_that_was_dear_is_borderline() -> None:
    """The error that dropping one layer added counts, in the smallest plan where it was seen."""
    trials = [
        trial([0, 1, 2, 3], 0.1),
        trial([0, 1, 2], 0.5),
        trial([0, 2, 3], 0.15),
        trial([0, 2], 0.75),
    ]
    seen = found(trials, kept=["n0", "n2"])
    assert ["n3", "n1"] == list(seen)
    assert pytest.approx(0.6) == seen["n3"].added
    assert pytest.approx(0.25) == seen["n1"].added
    assert ["dropping it added 0.6, 60% of the tolerance", "25% of the tolerance is left"] == [
        str(sign) for sign in seen["n3"].signs
    ]


def test_a_drop_that_helped_is_told_so() -> None:
    """A layer whose error alone is large may have lowered the error when it was dropped."""
    alone = trial(without(3), 0.5, Phase.RANKING)
    seen = found([alone, trial([0, 1, 2, 3], 0.6), trial([0, 1, 2], 0.4)], kept=["n0"])
    assert pytest.approx(-0.2) == seen["n3"].added
    assert "dropping it took away 0.2, 20% of the tolerance" in map(str, seen["n3"].signs)


def test_what_failed_was_not_paid_for() -> None:
    """A drop that did not pass makes no borderline layer: it stayed then."""
    assert {} == found([trial([0, 1], 0.2), trial([0], 3.0)])


def test_the_emulators_single_errors_count() -> None:
    """Without a drop of its own a layer is judged by its error alone low."""
    trials = [trial(without(i), 0.02 * i, Phase.RANKING) for i in range(10)]
    seen = found(trials, kept=["n9"])
    assert ["n8", "n7", "n6", "n5"] == list(seen)
    assert pytest.approx(0.16) == seen["n8"].share
    assert {
        "alone_error": pytest.approx(0.16),
        "added_error": None,
        "share": pytest.approx(0.16),
    } == (dict(seen["n8"].figures))


def test_there_are_few_and_none_where_nothing_is_near() -> None:
    """The dearest are told; ranks alone make no layer borderline, and neither does a check."""
    dear = [trial(without(i), 0.5 + i / 100, Phase.RANKING) for i in range(10)]
    assert ["n9", "n8", "n7", "n6", "n5"] == list(found(dear))
    assert MOST_BORDERLINE == len(found(dear))
    cheap = [trial(without(i), 0.01, Phase.RANKING) for i in range(10)]
    assert {} == found(cheap)
    assert {} == found(dear, tolerance=None)
    assert {} == found(dear, tolerance=0.0)


def test_infinite_errors_are_shares_as_well() -> None:
    """What overflows alone, and does not in the answer, comes first."""
    trials = [trial(without(1), math.inf, Phase.RANKING), trial(without(2), 0.5, Phase.RANKING)]
    assert ["n1", "n2"] == list(found(trials))
