"""Where monotonicity was seen broken: keeping more layers made a plan that passed fail.

Searches may assume that keeping more never hurts. The trials of a run can refute it: one plan
passed, and one that keeps all its layers and more failed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.runs.results.curve_of_result import KeptError, NonMonotone
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.limits_and_noise import MARGIN

MOST_LISTED = 5
"""Breaks in `result.json`, at most; a bound for readers."""
MOST_NAMED = 10
"""Named layers that a failing plan keeps in addition, at most; a bound for readers."""


class JudgedPlan(NamedTuple):
    """A plan with its error, None where there is no figure."""

    plan: Plan
    error: float | None

    def within(self, other: "JudgedPlan") -> bool:
        """Tell whether the other plan keeps all that this one does."""
        return self.plan.mask & other.plan.mask == self.plan.mask


class Break(NamedTuple):
    """A plan that passed and one that keeps more and failed."""

    passed: JudgedPlan
    failed: JudgedPlan

    @property
    def added(self) -> Plan:
        """The layers that the failing plan keeps in addition."""
        return self.failed.plan.without(self.passed.plan.kept)


def breaks(trials: JudgedTrials, noise: float) -> Sequence[Break]:
    """Return one break per failing plan that has any, smaller plans first.

    `noise` is the difference of the errors of two
    builds of one plan. It explains a break if both errors are finite and differ by at most
    2 `noise` max(`MARGIN`, f(m)), with f of `_farthest` and m judged plans; without a tolerance
    errors are no figures. Of several passing plans within a failing one the largest is named.

    Few passing plans need to be looked at: those that contain no other passing plan with as small
    an error (without noise: with any error). For m trials and k such plans that takes O(m k)
    operations on bit masks.
    """
    proofs = {plan: proof for plan in trials.built if (proof := trials.proof(plan))}
    farthest = max(MARGIN, _farthest(len(proofs)))
    spread = 0.0 if trials.tolerance is None else 2 * noise * farthest
    passed: list[JudgedPlan] = []
    pairs = []
    # In the order of plans: what a plan contains was looked at before it. Comparing plans would
    # sort their layers every time.
    for plan in sorted(proofs, key=lambda plan: (len(plan), plan.indices)):
        entry = JudgedPlan(plan, proofs[plan].error)
        inside = [smaller for smaller in passed if smaller.within(entry)]
        if not proofs[plan].failed:
            if not any(spread <= 0 or _least(smaller) <= _least(entry) for smaller in inside):
                passed.append(entry)
        elif clear := [
            smaller for smaller in inside if not _luck(smaller.error, entry.error, spread)
        ]:
            pairs.append(Break(max(clear, key=lambda smaller: len(smaller.plan)), entry))
    return pairs


def _farthest(builds: int) -> float:
    """Return how far off the unluckiest of so many builds is, over the difference of two builds.

    The largest of m normal values lies about sqrt(2 ln m) standard deviations above their mean.
    Two of them differ by 2 / sqrt(pi) standard deviations on average.
    """
    return math.sqrt(2 * math.log(max(builds, 1))) * math.sqrt(math.pi) / 2


def _luck(passed: float | None, failed: float | None, spread: float) -> bool:
    """Tell whether luck may explain that the plan that passed has the smaller error."""
    if passed is None or failed is None or spread <= 0:
        return False
    return math.isfinite(failed) and failed - passed <= spread


def _least(entry: JudgedPlan) -> float:
    return -math.inf if entry.error is None else entry.error


def rows(pairs: Sequence[Break], names: Sequence[str]) -> list[NonMonotone]:
    """Return the breaks as `non_monotone` of `result.json` lists them, a few at most."""
    return [
        NonMonotone(
            passed=KeptError(kept=len(pair.passed.plan), error=pair.passed.error),
            failed=KeptError(kept=len(pair.failed.plan), error=pair.failed.error),
            layers=[names[index] for index in pair.added.indices[:MOST_NAMED]],
        )
        for pair in pairs[:MOST_LISTED]
    ]


def remarks(pairs: Sequence[Break]) -> list[str]:
    """Return what people should know of the breaks, in one sentence at most."""
    if not pairs:
        return []
    first = pairs[0]
    often = f", so did {len(pairs) - 1} more that keep what passed" * (len(pairs) > 1)
    return [
        f"not monotone: {counted(len(first.passed.plan), 'kept layer')} passed"
        f"{_figure(first.passed.error)}, the same and {len(first.added)} more failed"
        f"{_figure(first.failed.error)}{often}; "
        "nothing here rests on monotonicity"
    ]


def _figure(error: float | None) -> str:
    return "" if error is None else f" (error {error:.4g})"
