"""A comparator that leaves a part of the tolerance to others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.trial import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Judges as `comparator` does, within a share of what lies between `base` and its tolerance.

    `base` is the error of the reference itself: 0 for differences, but not for a check that
    measures quality. A check without a figure is taken as it is.
    """

    comparator: Comparator
    share: float
    base: float = 0.0

    @property
    def tolerance(self) -> float | None:
        limit = self.comparator.tolerance
        return None if limit is None else self.base + self.share * (limit - self.base)

    def settings(self) -> Mapping[str, Any]:
        """Return the comparator's settings and the share, for the fingerprint."""
        return {**self.comparator.settings(), "share": self.share, "base": self.base}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples; outputs within the tolerance fail beyond the share of it."""
        judged = self.comparator.judge(outputs, reference)
        if self.tolerance is None or judged.error is None:
            return judged
        within = judged.verdict is Verdict.PASS and judged.error <= self.tolerance
        verdict = Verdict.PASS if within else Verdict.FAIL
        return replace(judged, verdict=verdict)


def shared(comparator: Comparator, share: float, reference: Sequence[Sample]) -> Comparator:
    """Return the comparator for a share of its tolerance; itself where that has no meaning."""
    if share >= 1.0 or comparator.tolerance is None:
        return comparator
    base = comparator.judge(reference, reference).error or 0.0
    return Shared(comparator=comparator, share=share, base=base)
