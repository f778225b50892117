"""The law of rounding: independent errors add up as the root of the sum of their squares.

What each layer adds alone predicts so the error of any plan, up to a factor that one or two
evaluations tell. Where errors are in step (one weight used many times) they add up as a sum.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from precision_bisect.plan import Plan
from precision_bisect.search.sensitivity import by_sensitivity
from precision_bisect.trial import Outcome

SPREADS = 2.0
"""A plan's predicted error stays so many standard deviations below the tolerance."""
IN_STEP = 1.2
"""Where a plan's error exceeds the root of the sum of squares by this factor, errors add up."""
LEAST_STEP = 0.04
"""Of the layers not kept, at least this share is added in a step."""
ROUNDING = 8.0
"""A layer whose error is below so many units of the low type's rounding is no culprit."""
LEAST_LEFT = 4
"""A culprit hurts as much as at least so many layers like the next one."""


@dataclass(slots=True)
class Law:
    """Predicts the error of a plan and of those with the first layers of `order` in addition.

    `errors` are what these layers add alone, the largest first. The factor is learnt from each
    outcome, as a geometric mean.
    """

    order: Sequence[int]
    errors: Sequence[float]
    _in_step: bool = field(init=False, default=False)
    _logs: list[float] = field(init=False, default_factory=list)

    @classmethod
    def of(cls, scores: Sequence[float], without: Plan) -> Self:
        """Return the law of what each layer adds, by its position, beside a plan that is kept."""
        order = [layer for layer in by_sensitivity(scores) if layer not in without.kept]
        return cls(order, [scores[layer] for layer in order])

    @property
    def steps(self) -> int:
        """The number of layers that can be added."""
        return len(self.order)

    def next(self, added: int, outcome: Outcome, tolerance: float | None, builds: float) -> int:
        """Return how many layers to add, more than `added`, of which the outcome is.

        `builds` is the standard deviation of the error's logarithm between two builds.
        """
        least = added + max(1, math.ceil(LEAST_STEP * (self.steps - added)))
        stability = outcome.evidence.stability
        error = typical(outcome)
        jitter = (stability.jitter if stability else None) or 0.0
        left = self.left(added)
        if (
            tolerance is None
            or error is None
            or not 0 < error < math.inf
            or not 0 < left < math.inf
        ):
            # Without a figure there is nothing to learn: go on in steps that double.
            return min(self.steps, max(least, 2 * added))
        if error > IN_STEP * left and not self._in_step:
            self._in_step, self._logs = True, []
            left = self.left(added)
        self._logs.append(math.log(error / left))
        factor = math.exp(sum(self._logs) / len(self._logs) + SPREADS * math.hypot(jitter, builds))

        def predicted(count: int) -> float:
            return -factor * self.left(count)

        places = range(least, self.steps)
        return min(self.steps, least + bisect_left(places, -tolerance, key=predicted))

    def between(
        self, fails: tuple[int, float], passes: tuple[int, float], error: float
    ) -> int | None:
        """Return how many layers come to an error between two measured ones, by interpolation.

        `fails` and `passes` are numbers of layers with their errors, the fewer layers first. None
        without finite figures.
        """
        (few, high), (many, low) = fails, passes
        before, after = self.left(few), self.left(many)
        if not (0 < low < error < high < math.inf and 0 < after < before < math.inf):
            return None
        slope = math.log(before / after) / math.log(high / low)
        level = after * math.exp(slope * math.log(error / low))
        places = range(few, many)
        return few + bisect_left(places, -level, key=lambda count: -self.left(count))

    def left(self, added: int) -> float:
        """Return what runs low comes to once so many layers have joined."""
        rest = self.errors[added:]
        return sum(rest) if self._in_step else math.hypot(*rest)

    def culprits(self, tolerance: float, unit: float, most: int | None = None) -> int:
        """Return how many first layers hurt alone as much as all less sensitive ones together.

        And by more than ordinary rounding: `unit` is half the distance from 1 to the next number
        of the low type. Where fewer than `LEAST_LEFT` are left they count as so many, as the last
        layers always hurt like all that are left. One evaluation has to confirm it; `most` is the
        largest number to return.
        """
        floor = max(ROUNDING * unit, tolerance / math.sqrt(max(1, self.steps)))
        largest = self.steps - 1 if most is None else min(most, self.steps - 1)
        for count in range(largest, 0, -1):
            error, left = self.errors[count - 1], self.errors[count:]
            rest = math.hypot(*left, *[left[0]] * (LEAST_LEFT - len(left)))
            if error >= floor and math.isfinite(rest) and error >= rest:
                return count
        return 0


def worst(outcome: Outcome) -> float | None:
    """Return the largest error over copies, else the error."""
    stability = outcome.evidence.stability
    return outcome.error if stability is None else stability.error_max


def typical(outcome: Outcome) -> float | None:
    """Return the median error over copies, else the error."""
    stability = outcome.evidence.stability
    return outcome.error if stability is None else stability.error_median
