"""Simulated oracles: what a plan, given as the set of kept layers, comes to.

The tolerance of all of them is `TOLERANCE`; each passes all-high and fails all-low unless its
arguments say otherwise. They need nothing but the standard library.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from precision_bisect.trial import Outcome, TrialStatus, Verdict

TOLERANCE = 1.0
Oracle = Callable[[frozenset[int]], Outcome]


def outcome(error: float) -> Outcome:
    """Return the finished outcome with this error."""
    verdict = Verdict.PASS if error <= TOLERANCE else Verdict.FAIL
    return Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=error)


def monotone(culprits: Collection[int]) -> Oracle:
    """Pass exactly when every culprit is kept; else the outputs overflow."""
    needed = frozenset(culprits)
    return lambda kept: outcome(0.0 if needed <= kept else float("inf"))


def additive(errors: Sequence[float]) -> Oracle:
    """Let the errors of the layers that are not kept add up."""
    return lambda kept: outcome(sum(e for i, e in enumerate(errors) if i not in kept))


def clustered(clusters: Sequence[Collection[int]]) -> Oracle:
    """Let each cluster cost an error of 2 unless all of it is kept: no member helps alone."""
    whole = [frozenset(cluster) for cluster in clusters]
    return lambda kept: outcome(sum(2.0 for cluster in whole if not cluster <= kept))


def interacting(pairs: Sequence[tuple[int, int]]) -> Oracle:
    """Fail when both of a pair run low: each alone is harmless, one of the two must be kept."""
    return lambda kept: outcome(0.1 + 2.0 * sum(a not in kept and b not in kept for a, b in pairs))


def non_monotone(size: int, seed: int) -> Oracle:
    """Pass and fail as a hash of the plan says; all-high passes and all-low fails."""

    def judge(kept: frozenset[int]) -> Outcome:
        if len(kept) in (0, size):
            return outcome(0.0 if kept else 2.0)
        return outcome(random.Random(f"{seed}:{sorted(kept)}").uniform(0.0, 2.0))

    return judge


def flaky(oracle: Oracle, size: int, seed: int, share: float = 0.2) -> Oracle:
    """Let a share of the plans, always the same ones, fail to build: no verdict."""

    def judge(kept: frozenset[int]) -> Outcome:
        luck = random.Random(f"{seed}:{sorted(kept)}").random()
        if 0 < len(kept) < size and luck < share:
            return Outcome(status=TrialStatus.BUILD_FAILED, message="no implementation")
        return oracle(kept)

    return judge


def without_figures(oracle: Oracle) -> Oracle:
    """Take the figure away: a check that only says yes or no."""
    return lambda kept: replace(oracle(kept), error=None)
