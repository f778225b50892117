"""A comparator that passes with an error that is no number."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from precision_bisect.judging.comparators.script import numbered
from precision_bisect.plan import Plan
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.trial import Proposal, Verdict
from simulated import Simulated, samples


class Careless:
    """Divides zero by zero and does not look at what comes of it."""

    tolerance = 1.0

    def settings(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Pass what is not above the limit."""
        return Judgement(verdict=Verdict.PASS, error=math.nan)


def test_a_pass_without_a_number_is_a_failure(tmp_path: Path) -> None:
    """Whoever wrote the comparator, a trial whose error is NaN failed, and says why."""
    backend = Simulated(lambda plan, feed: 0.0)
    evaluate = Evaluator(
        backend=backend,
        emulator=backend,
        comparator=Careless(),
        samples=samples(),
        keep=tmp_path,
    )
    outcome = evaluate(Proposal(plan=Plan.of((1,))))
    assert (Verdict.FAIL, math.inf) == (outcome.verdict, outcome.error)
    assert "the comparator's error is NaN" == outcome.message


@pytest.mark.parametrize("error", [None, 0.0, 0.5, 7.0, math.inf])
def test_numbers_stay_as_they_are(error: float | None) -> None:
    """A figure, or none, is the comparator's own business."""
    for verdict in Verdict:
        judgement = Judgement(verdict=verdict, error=error, message="m")
        assert judgement is numbered(judgement)
