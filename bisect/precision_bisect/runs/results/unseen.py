"""What an answer promises about inputs that nobody has shown: an exact bound, or none.

Samples that took part in a decision promise nothing, since the answer was made to pass on them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure

CONFIDENCE = 0.9
SAFE = 0.05
"""Share of unseen inputs that may exceed the limit by a plan that is deployed, by how errors
spread over samples, with this confidence. An exact bound of as much takes 45 samples."""


def as_safe(share: float | None, beside: float | None) -> bool:
    """Whether such a share is small, or no larger than that of a rival; one unknown is small."""
    return share is None or share <= max(SAFE, beside or 0.0)


class Seen(NamedTuple):
    """How often answers failed on fresh inputs: the mean over runs, and the worst run."""

    samples: int
    mean: float
    worst: float


BY_SAMPLES = (
    Seen(1, 0.09, 0.36),
    Seen(2, 0.059, 0.46),
    Seen(4, 0.035, 0.24),
    Seen(8, 0.015, 0.19),
)
"""Shares of 100 or 150 fresh inputs over the limit, by the number of samples of a search, one
limit for each of 15 networks (BERT, CLIP, conformer, DETR, Mamba, wake word, SegFormer, mixture of
experts, and those of benchmarks/results/unseen.json), each of which counts the same."""
NETWORKS = 15
"""The networks of `BY_SAMPLES`: none of them is the one of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSamples:
    """The errors of a plan over `samples`: the median, and the 95th percentile."""

    samples: Count
    median: Figure
    p95: Figure

    @classmethod
    def of(cls, errors: Iterable[float]) -> "OverSamples | None":
        """Return those of some errors; None for none. A percentile is one of the errors."""
        ascending = sorted(errors)
        if not ascending:
            return None
        p95 = ascending[math.ceil(0.95 * len(ascending)) - 1]
        return cls(samples=len(ascending), median=median(ascending), p95=p95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the spread of errors suggests: that less than `share_under` of such inputs are over.

    It is no promise. None where it suggests more than the asked `risk`, or nothing. `spread` is
    the standard deviation of ln(error) that it rests on, None where errors are of two kinds, as
    in networks with operators that are `selecting`.
    """

    risk: Figure
    share_under: Figure | None
    spread: Figure | None = None
    selecting: Sequence[str] = ()

    @property
    def provable_by(self) -> int:
        """The number of samples without a part that prove the risk, if all of them pass."""
        return math.ceil(math.log1p(-CONFIDENCE) / math.log1p(-self.risk))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrating:
    """Samples that chose nothing but scales: `failed` of `judged` exceed the limit.

    They promise nothing, since scales that were made for them fit them.
    """

    judged: Count
    failed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What samples that took no part in the search say of the answer.

    Of `judged` distinct samples `failed` exceed the limit. With this `confidence` at most
    `share_at_most` of such inputs do, if the samples were drawn as inputs will be. `took_part`
    samples chose the answer; `joined` of them did so because an earlier answer failed on them, and
    `passed_later` are others that it failed on. The bound counts both as failures: it is that of
    the earlier answer, and holds for a wider one that fails no more. `unjudged` samples have no
    FP32 outputs to judge by. `estimate` is there where one was asked for. `calibrating` is None
    where nothing was calibrated; else all that judge have taken part.
    """

    judged: Count
    failed: Count
    share_at_most: Figure = field(init=False)
    confidence: Figure = CONFIDENCE
    took_part: Count
    joined: Count = 0
    passed_later: Count = 0
    unjudged: Count = 0
    calibrating: Calibrating | None = None
    estimate: Estimate | None = None

    def __post_init__(self) -> None:
        failed = self.failed + self.joined + self.passed_later
        share = share_at_most(failed, self.judged + self.joined)
        object.__setattr__(self, "share_at_most", share)

    @property
    def alike(self) -> Seen | None:
        """What was seen of searches with about as many samples; None where there is a promise.

        Nothing was seen of searches with calibrated scales.
        """
        place = bisect_right(BY_SAMPLES, self.took_part, key=lambda entry: entry.samples)
        return None if self.judged or self.calibrating or not place else BY_SAMPLES[place - 1]


def share_at_most(failed: int, judged: int) -> float:
    """Return the upper bound of Clopper and Pearson on the share of failures.

    It is the share p at which `failed` or fewer of `judged` draws fail with probability
    1 - CONFIDENCE. Without draws it is 1.
    """
    if failed >= judged:
        return 1.0
    if not failed:
        return -math.expm1(math.log1p(-CONFIDENCE) / judged)
    low, high = failed / judged, 1.0
    # Halving a share 60 times leaves less than the rounding of a float.
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(failed, judged, middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _at_most(failed: int, judged: int, share: float) -> float:
    """Return the probability that `failed` or fewer of `judged` draws fail."""
    # In logarithms: the binomials of 1,000 samples have hundreds of digits.
    log, rest = math.log(share), math.log1p(-share)
    terms = (
        math.lgamma(judged + 1)
        - math.lgamma(k + 1)
        - math.lgamma(judged - k + 1)
        + k * log
        + (judged - k) * rest
        for k in range(failed + 1)
    )
    return math.fsum(map(math.exp, terms))
