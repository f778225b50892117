"""The checks that come along, as comparators: `--check top1`, `--check boxes:dets,labels`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_bisect.comparators.matched_boxes import DoesNotFit
from precision_bisect.comparators.task_checks import judge_task
from precision_bisect.errors import UsageError
from precision_bisect.inputs.reference import non_finite
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.settings.check_words import READY_MADE, CheckWords, judged_outputs
from precision_bisect.trial import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMade:
    """Judges these outputs of all samples by a check of READY_MADE."""

    name: str
    outputs: Sequence[str]
    tolerance: float

    def settings(self) -> Mapping[str, Any]:
        """Return the check, its outputs and the limit, for the fingerprint."""
        return {"check": self.name, "outputs": list(self.outputs), "tolerance": self.tolerance}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples. Raises UsageError for a reference that the check is not made for."""
        if not outputs or len(outputs) != len(reference):
            raise ValueError(f"{len(outputs)} outputs for {len(reference)} references")
        if trouble := non_finite(outputs):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
        given, wanted = (
            [{n: s[n] for n in self.outputs} for s in x] for x in (outputs, reference)
        )
        try:
            with np.errstate(all="ignore"):
                error, told = judge_task(self.name, given, wanted)
        except DoesNotFit as why:
            hint = f"name the outputs that it judges, as --check {self.name}:OUTPUT"
            raise UsageError(f"--check {self.name}: {why}", f"{hint}, or write a check") from why
        verdict = Verdict.PASS if error <= self.tolerance else Verdict.FAIL
        return Judgement(verdict=verdict, error=error, message=told)


def ready_made(words: CheckWords, outputs: Sequence[str], tolerance: float | None) -> ReadyMade:
    """Return the check for a model with these outputs. Raises UsageError."""
    judged = judged_outputs(words, outputs)
    if tolerance is None:
        raise UsageError(
            f"--check {words.name} has no default tolerance",
            f"give --tol {READY_MADE[words.name]}",
        )
    return ReadyMade(name=words.name, outputs=judged, tolerance=tolerance)
