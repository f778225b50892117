"""Where monotonicity was seen broken: keeping more layers made a plan that passed fail.

Searches may assume that keeping more never hurts, and an implied proof rests on it. The trials of
a run can refute it: one plan passed, and one that keeps all its layers and more failed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_bisect.plan import Plan
from precision_bisect.results.result import KeptError, NonMonotone
from precision_bisect.search.limits_and_noise import MARGIN
from precision_bisect.trial import JUDGED_KINDS, SampleSet, Trial

MOST_LISTED = 5
"""Breaks in `result.json`, at most; a bound for readers."""
MOST_NAMED = 10
"""Named layers that a failing plan keeps in addition, at most; a bound for readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A plan that passed and one that keeps more and failed, with their errors, if any.

    `noise` tells that luck alone explains the difference of the errors. Nothing is refuted then.
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
        if asked.samples is not samples or asked.kind not in JUDGED_KINDS or asked.draw:
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

    `noise` is the difference of the errors of two builds of one plan. A break is within the noise
    if both errors are finite and differ by at most 2 `noise` max(`MARGIN`, f(m)), with f of
    `_farthest` and m judged plans. Without a `tolerance` errors are no figures, and every break is
    clear. Of several passing plans within a failing one the largest is named, a clear one before
    one within the noise.

    Few passing plans need to be looked at: those that contain no other passing plan with as small
    an error (without noise: with any error). For m trials and k such plans that takes O(m k)
    operations on bit masks.
    """
    told = judged(trials, samples)
    spread = 2 * noise * max(MARGIN, _farthest(len(told))) if tolerance is not None else 0.0
    passed = _telling([_entry(trial) for trial in told if not trial.outcome.failed], spread)
    found = []
    for entry in (_entry(trial) for trial in told if trial.outcome.failed):
        # A test for subsets, on masks.
        within = [each for each in passed if each.mask & entry.mask == each.mask]
        clear = [each for each in within if not _luck(each.error, entry.error, spread)]
        if within:
            named = max(clear or within, key=lambda each: len(each.plan))
            found.append(_break(named, entry, noise=not clear))
    return sorted(found, key=lambda each: each.noise)


def _entry(trial: Trial) -> _Judged:
    plan = trial.proposal.plan
    return _Judged(plan.mask, plan, trial.outcome.error)


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


def _telling(passed: Sequence[_Judged], spread: float) -> list[_Judged]:
    """Return the plans that contain no other that proves as much; `passed` is in plans' order."""
    telling: list[_Judged] = []
    # In plans' order a smaller plan comes first, so what may be contained is already in the list.
    for entry in passed:
        if not any(
            other.mask & entry.mask == other.mask
            and (spread <= 0 or _least(other) <= _least(entry))
            for other in telling
        ):
            telling.append(entry)
    return telling


def _least(entry: _Judged) -> float:
    return -math.inf if entry.error is None else entry.error


def _break(passed: _Judged, failed: _Judged, *, noise: bool) -> Break:
    return Break(
        passed=passed.plan,
        passed_error=passed.error,
        failed=failed.plan,
        failed_error=failed.error,
        noise=noise,
    )


def rows(found: Sequence[Break], names: Sequence[str]) -> list[NonMonotone]:
    """Return the clear breaks as `non_monotone` of `result.json` lists them, a few at most."""
    return [
        NonMonotone(
            passed=KeptError(kept=len(each.passed), error=each.passed_error),
            failed=KeptError(kept=len(each.failed), error=each.failed_error),
            layers=[names[index] for index in each.added.indices[:MOST_NAMED]],
        )
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
            f"{noisy} failed trials keep more than one that passed; the errors differ by no more "
            "than is within the noise"
        )
    return said


def _figure(error: float | None) -> str:
    return "" if error is None else f" (error {error:.4g})"
