"""Where monotonicity was seen broken: keeping more layers made a plan that passed fail.

Searches may assume that keeping more never hurts. The trials of a run can refute it: one plan
passed, and one that keeps all its layers and more failed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.runs.results.result import KeptError, NonMonotone
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


def breaks(seen: JudgedTrials, noise: float) -> Sequence[Break]:
    """Return one break per failing plan that has any, smaller plans first.

    `noise` is the difference of the errors of two
    builds of one plan. It explains a break if both errors are finite and differ by at most
    2 `noise` max(`MARGIN`, f(m)), with f of `_farthest` and m judged plans; without a tolerance
    errors are no figures. Of several passing plans within a failing one the largest is named.

    Few passing plans need to be looked at: those that contain no other passing plan with as small
    an error (without noise: with any error). For m trials and k such plans that takes O(m k)
    operations on bit masks.
    """
    told = {plan: proof for plan in seen.built if (proof := seen.proof(plan))}
    farthest = max(MARGIN, _farthest(len(told)))
    spread = 0.0 if seen.tolerance is None else 2 * noise * farthest
    passed: list[JudgedPlan] = []
    found = []
    # In the order of plans: what a plan contains was looked at before it. Comparing plans would
    # sort their layers every time.
    for plan in sorted(told, key=lambda plan: (len(plan), plan.indices)):
        entry = JudgedPlan(plan, told[plan].error)
        inside = [each for each in passed if each.within(entry)]
        if not told[plan].failed:
            if not any(spread <= 0 or _least(each) <= _least(entry) for each in inside):
                passed.append(entry)
        elif clear := [each for each in inside if not _luck(each.error, entry.error, spread)]:
            found.append(Break(max(clear, key=lambda each: len(each.plan)), entry))
    return found


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


def rows(found: Sequence[Break], names: Sequence[str]) -> list[NonMonotone]:
    """Return the breaks as `non_monotone` of `result.json` lists them, a few at most."""
    return [
        NonMonotone(
            passed=KeptError(kept=len(each.passed.plan), error=each.passed.error),
            failed=KeptError(kept=len(each.failed.plan), error=each.failed.error),
            layers=[names[index] for index in each.added.indices[:MOST_NAMED]],
        )
        for each in found[:MOST_LISTED]
    ]


def remarks(found: Sequence[Break]) -> list[str]:
    """Return what people should know of the breaks, in one sentence at most."""
    if not found:
        return []
    first = found[0]
    often = f", so did {len(found) - 1} more that keep what passed" * (len(found) > 1)
    return [
        f"not monotone: {counted(len(first.passed.plan), 'kept layer')} passed"
        f"{_figure(first.passed.error)}, the same and {len(first.added)} more failed"
        f"{_figure(first.failed.error)}{often}; "
        "nothing here rests on monotonicity"
    ]


def _figure(error: float | None) -> str:
    return "" if error is None else f" (error {error:.4g})"
