"""What the screen says of unseen inputs, in one line."""

from dataclasses import replace

import pytest

from precision_bisect.runs.results.result import Inputs
from precision_bisect.runs.results.unseen import Calibrating, Estimate, Unseen
from precision_bisect_reports.promise import unseen
from run_folders import result_of

FEW = (
    "2 samples promise nothing (--holdout N judges others); on 15 other networks 6% of fresh "
    "inputs failed, up to 46%"
)
"""What was seen elsewhere is called so."""


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            Unseen(judged=45, failed=0, took_part=8),
            "0 of 45 inputs that took no part are over; at most 5% of such inputs, "
            "with 90% confidence",
        ),
        (Unseen(judged=0, failed=0, took_part=2), FEW),
        (
            Unseen(judged=29, failed=0, took_part=9, joined=1),
            "0 of 29 inputs that took no part are over, and 1 was with an earlier answer; at "
            "most 12% of such inputs, with 90% confidence",
        ),
        (
            Unseen(judged=43, failed=1, took_part=10, joined=2, passed_later=1, unjudged=3),
            "1 of 43 inputs that took no part are over, and 3 were with an earlier answer; at "
            "most 17% of such inputs, with 90% confidence; 3 have no FP32 outputs to judge by",
        ),
        (
            Unseen(judged=0, failed=0, took_part=60, calibrating=Calibrating(judged=45, failed=0)),
            "all 60 samples calibrated, which promises nothing (--holdout N does); "
            "0 of 45 that chose no layer are over",
        ),
        (
            Unseen(judged=0, failed=0, took_part=1, calibrating=Calibrating(judged=0, failed=0)),
            "the one sample calibrated, which promises nothing (--holdout N does)",
        ),
        (
            Unseen(judged=9, failed=0, took_part=8, calibrating=Calibrating(judged=0, failed=0)),
            "0 of 9 inputs that took no part are over; at most 23% of such inputs, "
            "with 90% confidence",
        ),
    ],
)
def test_the_line_is_the_promise_or_why_there_is_none(told: Unseen, said: str) -> None:
    """Counts, the bound and its confidence; of few samples what was seen elsewhere."""
    assert said == unseen(replace(result_of(["a"], [0]), unseen=told))


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (
            Estimate(risk=0.05, share_under=0.137, spread=0.4),
            "; their spread suggests under 14%; 45 samples that pass would prove 5%",
        ),
        (
            Estimate(risk=0.05, share_under=None, spread=0.4),
            "; their spread does not suggest 5% or less",
        ),
        (
            Estimate(risk=0.01, share_under=None, selecting=["TopK"]),
            "; no estimate for 1%: errors are of several kinds, as TopK selects",
        ),
    ],
)
def test_an_estimate_stands_beside_the_promise(estimate: Estimate, said: str) -> None:
    """It is told after it, as what it is; a promise that is as good needs none."""
    told = replace(Unseen(judged=0, failed=0, took_part=2), estimate=estimate)
    assert FEW + said == unseen(replace(result_of(["a"], [0]), unseen=told))
    proven = replace(Unseen(judged=500, failed=0, took_part=8), estimate=estimate)
    assert "spread" not in unseen(replace(result_of(["a"], [0]), unseen=proven))


def test_of_made_up_inputs_only_what_was_judged_is_said() -> None:
    """What was seen of real inputs says nothing of made-up ones."""
    few = Unseen(judged=0, failed=0, took_part=2)
    scaled = replace(few, calibrating=Calibrating(judged=0, failed=0))
    made_up = replace(result_of(["a"], [0]), inputs=Inputs(synthetic=True, samples=2))
    assert ["", ""] == [unseen(replace(made_up, unseen=each)) for each in (few, scaled)]
    assert "" == unseen(replace(result_of(["a"], [0]), unseen=None))


def test_what_has_not_judged_yet_is_counted() -> None:
    """A budget that ends early leaves samples that say nothing of its best plan so far."""
    early = replace(
        result_of(["a"], [0]),
        unseen=Unseen(judged=0, failed=0, took_part=10),
        inputs=Inputs(synthetic=False, samples=40),
    )
    assert unseen(early).endswith("up to 19%; the other 30 have not judged this answer")
    all_of_few = replace(early, inputs=Inputs(synthetic=False, samples=10))
    assert unseen(all_of_few).endswith("up to 19%")
