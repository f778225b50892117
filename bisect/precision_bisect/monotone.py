"""Where monotonicity was seen broken: keeping more layers made a plan that passed fail.

Searches may assume that keeping more never hurts, and an implied certificate rests on it. The
trials of a run can refute it: a plan that failed although a plan that keeps fewer passed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from precision_bisect.plan import Plan
from precision_bisect.trial import JUDGED_KINDS, SampleSet, Trial
from precision_bisect.verdicts import MARGIN

MOST_LISTED = 5
"""So many breaks are in `result.json`."""
MOST_NAMED = 10
"""So many of the layers that a failing plan keeps in addition are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A plan that passed and one that keeps more and failed, with their errors, if any.

    `noise` tells that both errors are as near the tolerance as luck takes some of so many builds,
    which explains them; nothing is refuted then.
    """

    passed: Plan
    passed_error: float | None
    failed: Plan
    failed_error: float | None
    noise: bool

    @property
    def added(self) -> Plan:
        """The layers that the failing plan keeps in addition."""
        return self.failed.without(self.passed.kept)


@dataclass(frozen=True, slots=True)
class _Judged:
    mask: int
    plan: Plan
    error: float | None


def judged(trials: Iterable[Trial], samples: SampleSet) -> Sequence[Trial]:
    """Return the trials with a verdict on a sample set, without plans that builds disagree on.

    Of several trials of one plan the first is returned. Smaller plans come first.
    """
    found: dict[Plan, Trial] = {}
    contested: set[Plan] = set()
    for trial in trials:
        asked, outcome = trial.proposal, trial.outcome
        if asked.samples is not samples or asked.kind not in JUDGED_KINDS:
            continue
        if outcome.verdict is None:
            continue
        first = found.setdefault(asked.plan, trial)
        if first.outcome.verdict is not outcome.verdict:
            contested.add(asked.plan)
    # The order of plans, each key made once: comparing plans would sort their layers every time.
    plans = sorted(found.keys() - contested, key=lambda plan: (len(plan), plan.indices))
    return [found[plan] for plan in plans]


def breaks(
    trials: Iterable[Trial], samples: SampleSet, tolerance: float | None, noise: float
) -> Sequence[Break]:
    """Return one break per failing plan that has any, clear ones first, then smaller plans.

    `noise` is the error between two builds of the same plan. Twice as far from the tolerance is
    within the noise, or as far as the luckiest of all builds may be. Of the passing plans within
    the failing one the one that lacks fewest of its layers is named, a clear one before one that
    is within the noise.

    Only passing plans that contain no other one are looked at: what contains a plan contains
    those within it. For m trials and k such plans that is O(m k) operations on bit masks.
    """
    clear: list[_Judged] = []
    near: list[_Judged] = []
    failed: list[_Judged] = []
    told = judged(trials, samples)
    spread = noise * max(MARGIN, _farthest(len(told)))
    for trial in told:
        entry = _entry(trial)
        if trial.outcome.failed:
            failed.append(entry)
        else:
            (near if _near(entry.error, tolerance, spread) else clear).append(entry)
    clear, near = _minimal(clear), _minimal(near)
    found = []
    for entry in failed:
        doubtful = _near(entry.error, tolerance, spread)
        if within := _within(entry, clear):
            found.append(_break(within, entry, noise=False))
        elif within := _within(entry, near):
            found.append(_break(within, entry, noise=doubtful))
    return sorted(found, key=lambda each: each.noise)


def _entry(trial: Trial) -> _Judged:
    plan = trial.proposal.plan
    return _Judged(plan.mask, plan, trial.outcome.error)


def _farthest(builds: int) -> float:
    """Return how far off one of so many builds is by luck, over what two builds differ by.

    The largest of m normal values is about sqrt(2 ln m) standard deviations above their mean; two
    differ by 2 / sqrt(pi) of these on average.
    """
    return math.sqrt(2 * math.log(max(builds, 1))) * math.sqrt(math.pi) / 2


def _near(error: float | None, tolerance: float | None, spread: float) -> bool:
    """Tell whether luck may have moved an error across the tolerance; it needs figures."""
    if error is None or tolerance is None or spread <= 0:
        return False
    return math.isfinite(error) and abs(error - tolerance) <= spread


def _minimal(passed: Sequence[_Judged]) -> list[_Judged]:
    """Return those that contain no other one; `passed` is in the order of plans."""
    minimal: list[_Judged] = []
    for entry in passed:
        if not any(other.mask & entry.mask == other.mask for other in minimal):
            minimal.append(entry)
    return minimal


def _within(failed: _Judged, passed: Sequence[_Judged]) -> _Judged | None:
    """Return the largest plan within a failing one, the first of several."""
    inside = (entry for entry in passed if entry.mask & failed.mask == entry.mask)
    return max(inside, key=lambda entry: len(entry.plan), default=None)


def _break(passed: _Judged, failed: _Judged, *, noise: bool) -> Break:
    return Break(
        passed=passed.plan,
        passed_error=passed.error,
        failed=failed.plan,
        failed_error=failed.error,
        noise=noise,
    )


def rows(found: Sequence[Break], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the clear breaks as `non_monotone` of `result.json` lists them, a few at most."""
    return [
        {
            "passed": {"kept": len(each.passed), "error": each.passed_error},
            "failed": {"kept": len(each.failed), "error": each.failed_error},
            "layers": [names[index] for index in each.added.indices[:MOST_NAMED]],
        }
        for each in found[:MOST_LISTED]
        if not each.noise
    ]


def remarks(found: Sequence[Break]) -> list[str]:
    """Return what people should know of the breaks: at most one sentence on each sort."""
    clear = [each for each in found if not each.noise]
    said = []
    if clear:
        first = clear[0]
        often = f", so did {len(clear) - 1} more that keep what passed" * (len(clear) > 1)
        said.append(
            f"not monotone: {len(first.passed)} kept layers passed{_figure(first.passed_error)}, "
            f"the same and {len(first.added)} more failed{_figure(first.failed_error)}{often}; "
            "nothing here rests on monotonicity"
        )
    if noisy := len(found) - len(clear):
        said.append(
            f"{noisy} failed trials keep more than one that passed; all errors are within the "
            "noise of the tolerance"
        )
    return said


def _figure(error: float | None) -> str:
    return "" if error is None else f" (error {error:.4g})"
