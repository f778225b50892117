"""The law of rounding: independent errors add up as the root of the sum of their squares.

So the errors of single layers predict that of every plan, E(low layers) = c sqrt(sum of e_i^2).
One or two evaluations tell the factor c, mostly 0.3 to 1.2 (94% of 415 points of some 40
networks). Errors that are in step (one weight used many times) add up as a sum instead.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from precision_bisect.plan import Plan
from precision_bisect.search.sensitivity import by_sensitivity
from precision_bisect.trial import Outcome

PREDICTED_BELOW = 2.0
"""Standard deviations of ln(error) that a plan's prediction stays below the tolerance: 97.7% of
draws pass. With 1.645 (95%) 4 of 131 repeats on 20 networks failed over 5% of fresh copies."""
IN_STEP = 1.2
"""Measured error over the law's, above which errors are taken to be in step. On some 40 networks
independent errors gave 0.3 to 1.2; tied weights gave 2 to 3.7."""
LAWFUL = 3.0
"""Measured error over the law's, up to which a failing plan is called rounding. On some 40
networks 94% of 415 points lay between 0.3 and 1.2; the rest is a margin."""
LEAST_STEP = 0.04
"""Share of the layers not yet kept that a step adds at least: 25 steps reach the end. A bound.
Half and double change no more than chance does in benchmarks/constants.py."""
ORDINARY_UNITS = 8.0
"""Errors below so many units of rounding (`unit`, 2^-11 for FP16) are ordinary: no culprits.
Without this floor all 48 layers of resnet18 would be called so."""
LEAST_LEFT = 4
"""Less sensitive layers that a culprit is compared with, at least. The last layers of any order
always outweigh the few after them. A bound. Half and double change nothing in
benchmarks/constants.py."""


@dataclass(slots=True)
class Law:
    """Predicts the error of a plan, and of that plan with the first layers of `order` in addition.

    `errors` are what these layers add alone, the largest first. The factor c is the geometric mean
    over the outcomes seen so far.
    """

    order: Sequence[int]
    errors: Sequence[float]
    _in_step: bool = field(init=False, default=False)
    _logs: list[float] = field(init=False, default_factory=list)

    @classmethod
    def of(cls, scores: Sequence[float], without: Plan) -> Self:
        """Return the law for the layers that a plan does not keep; `scores` are by position."""
        order = [layer for layer in by_sensitivity(scores) if layer not in without.kept]
        return cls(order, [scores[layer] for layer in order])

    def along(self, *plans: Plan) -> "Law":
        """Return the law for an order that begins with the layers of these plans, in turn."""
        scores = dict(zip(self.order, self.errors, strict=True))
        first = (layer for plan in plans for layer in self.order if layer in plan.kept)
        order = list(dict.fromkeys((*first, *self.order)))
        law = Law(order, [scores[layer] for layer in order])
        law._in_step = self._in_step
        return law

    def behind(self, plan: Plan) -> "Law":
        """Return the law for plans that keep all of these layers; of others it says nothing."""
        law = self.along(plan)
        law.errors = [math.inf] * len(plan) + list(law.errors[len(plan) :])
        return law

    def is_broken_by(self, added: int, outcome: Outcome) -> bool:
        """Tell whether an error with the first `added` layers kept is far above the law's."""
        error = typical(outcome)
        return error is not None and error > LAWFUL * self.left(added)

    @property
    def steps(self) -> int:
        """The number of layers that can be added."""
        return len(self.order)

    @staticmethod
    def tells(outcome: Outcome) -> bool:
        """Tell whether an outcome has a figure that the law can learn from."""
        return 0 < (typical(outcome) or 0.0) < math.inf

    def next(self, added: int, outcome: Outcome, tolerance: float | None, builds: float) -> int:
        """Return how many layers to keep, more than `added`, whose plan has this outcome.

        `builds` is the standard deviation of ln(error) between two builds of one plan.
        """
        least = added + max(1, math.ceil(LEAST_STEP * (self.steps - added)))
        error = typical(outcome)
        rest = self.left(added)
        if (
            tolerance is None
            or error is None
            or not self.tells(outcome)
            or not 0 < rest < math.inf
        ):
            # Without a figure, or by one that is not above 0, as a script's own may be, there is
            # nothing to learn: go on in steps that double.
            return min(self.steps, max(least, 2 * added))
        # Factors learnt from root sums of squares mean nothing for sums: start to learn again.
        if error > IN_STEP * rest and not self._in_step:
            self._in_step, self._logs = True, []
            rest = self.left(added)
        self._logs.append(math.log(error / rest))
        # Both spreads are independent, so their variances add up.
        spreads = PREDICTED_BELOW * math.hypot(jitter(outcome), builds)
        factor = math.exp(sum(self._logs) / len(self._logs) + spreads)

        def predicted(count: int) -> float:
            return -factor * self.left(count)

        # Negated, as `bisect_left` wants rising values and errors fall with more layers.
        places = range(least, self.steps)
        return min(self.steps, least + bisect_left(places, -tolerance, key=predicted))

    def between(
        self, fails: tuple[int, float], passes: tuple[int, float], error: float
    ) -> int | None:
        """Return the number of layers with `error`, between two measured plans, by interpolation.

        `fails` and `passes` are pairs of layers and error, the one with fewer layers first. None
        without finite figures.
        """
        (few, high), (many, low) = fails, passes
        before, after = self.left(few), self.left(many)
        if not (0 < low < error < high < math.inf and 0 < after < before < math.inf):
            return None
        # ln(error) against ln(law) is taken as a line through both points: the law's shape is
        # trusted between them, its scale and exponent are not.
        slope = math.log(before / after) / math.log(high / low)
        level = after * math.exp(slope * math.log(error / low))
        places = range(few, many)
        return few + bisect_left(places, -level, key=lambda count: -self.left(count))

    def left(self, added: int) -> float:
        """Return the law's error once the first `added` layers are kept."""
        rest = self.errors[added:]
        return sum(rest) if self._in_step else math.hypot(*rest)

    def culprits(self, tolerance: float, unit: float, most: int | None = None) -> int:
        """Return how many first layers are culprits: each hurts as much as all after it together.

        That is the largest k with e_k >= sqrt(sum of e_i^2, i > k) and e_k >= max(`ORDINARY_UNITS`
        `unit`, `tolerance` / sqrt(n)). `unit` is half the distance from 1 to the next number of
        the low type. Where fewer than `LEAST_LEFT` layers come after, the next one stands in for
        the missing ones. `most` is the largest number to return. An evaluation has to confirm it.
        """
        # An error of tolerance / sqrt(n) for each of n layers would use up the tolerance just so.
        floor = max(ORDINARY_UNITS * unit, tolerance / math.sqrt(max(1, self.steps)))
        largest = self.steps - 1 if most is None else min(most, self.steps - 1)
        for count in range(largest, 0, -1):
            error, later = self.errors[count - 1], self.errors[count:]
            rest = math.hypot(*later, *[later[0]] * (LEAST_LEFT - len(later)))
            if error >= floor and math.isfinite(rest) and error >= rest:
                return count
        return 0


def jitter(outcome: Outcome) -> float:
    """Return the standard deviation of ln(error) over copies; 0 where nothing is known of it."""
    stability = outcome.evidence.stability
    return (stability.jitter if stability else None) or 0.0


def aimed_at(tolerance: float, outcome: Outcome, builds: float = 0.0) -> float:
    """Return the error that a widened plan is chosen for, as `Law.next` has it."""
    return tolerance * math.exp(-PREDICTED_BELOW * math.hypot(jitter(outcome), builds))


def worst(outcome: Outcome) -> float | None:
    """Return the largest error over copies, else the error."""
    stability = outcome.evidence.stability
    return outcome.error if stability is None else stability.error_max


def typical(outcome: Outcome) -> float | None:
    """Return the median error over copies, else the error."""
    stability = outcome.evidence.stability
    return outcome.error if stability is None else stability.error_median
