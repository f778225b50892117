"""An answer is never worse than another plan of its own curve.

The curve is completed once there is an answer, and a point of it may be the better one: a search
ends where no single layer can go, and a plan that was widened keeps what the law asked for.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from precision_bisect.options import Certify
from precision_bisect.pipeline.stability import StabilityCheck, clear_limit
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.endings import Ending
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.limits_and_noise import passing_within
from precision_bisect.search.precision_curve import CURVE_DRAW, Curve
from precision_bisect.search.rounding_law import aimed_at, typical
from precision_bisect.search.speed.meet_limits import still_fast
from precision_bisect.trial import Outcome

TRIED = 3
"""Points that are judged beside one answer, at most. A bound on builds."""
DRAWS = 16
"""Draws that are left for each answer: two for each of `TRIED`, and those of a certificate."""
FAR_BETTER = 2.0
"""Factor by which the error must fall for a plan that keeps as many layers, or a few more. Half
and double change nothing in benchmarks/constants.py."""
FEWER_SHARE = 0.03
"""Layers that a plan must save, as a share of those of an answer whose layers luck decides. On
PP-OCRv4 det two of 194 took two draws of copies, an eighth of the run."""
FEW_MORE, FEW_MORE_SHARE = 2, 0.1
"""Layers that such a plan may keep more, and that as a share of the answer's. Half and double
change nothing in benchmarks/constants.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An answer beside its curve, and what a plan that takes its place has to hold.

    `outcome` is the answer's. `refuted` are the plans that have failed on some copies. `seen` has
    the trials that a certificate can rest on, which is made as `certify` says.
    """

    ending: Ending
    outcome: Outcome
    refuted: Collection[Plan]
    copies: bool
    certify: Certify
    seen: JudgedTrials

    def far(self, outcome: Outcome, tolerance: float | None) -> bool:
        """Tell whether a plan is as far below the tolerance as one that is widened has to be.

        What a search has found need not be. Nor need a plan whose error is not above the answer's.
        """
        error, own = typical(outcome), typical(self.outcome)
        if self.ending.spread is None or tolerance is None or error is None:
            return True
        return error <= max(aimed_at(tolerance, outcome), own or 0.0)


def best_known(problem: Problem, curve: Curve, standing: Standing) -> Search[Ending | None]:
    """Return the ending with a better plan of the curve as its answer; None where there is none.

    Such a plan holds as an answer does: on two draws that had no part in choosing it. Fewer layers
    are certified anew, and a layer that can go goes.
    """
    ending = standing.ending
    # Draws of its own: those that were seen have had a part in choosing.
    first = drawn = CURVE_DRAW + 1 + DRAWS * len(ending.passed_over)
    for plan in _better(curve, standing)[:TRIED]:
        if plan in standing.refuted:
            continue
        holding = StabilityCheck(
            problem=problem, copies=standing.copies, rebuilds=problem.builds, drawn=drawn
        )
        outcome = yield from _held(holding, plan, curve.tried[plan], standing)
        if outcome is None:
            # The next plan is judged by draws that this one has not used up.
            drawn = holding.drawn
            continue
        plan = yield from _certified(holding, plan, outcome, standing, first + 2 * TRIED)
        assert ending.plan is not None
        return replace(
            ending, plan=plan, found=None, passed_over=(*ending.passed_over, ending.plan)
        )
    return None


def _better(curve: Curve, standing: Standing) -> list[Plan]:
    """Return the plans that passed and are better than the answer, the fewest layers first."""
    ending, error = standing.ending, typical(standing.outcome)
    assert ending.plan is not None
    kept = len(ending.plan)
    # Where a certificate says that no layer can go, none is added.
    least = kept if ending.spread is None else math.ceil((1 - FEWER_SHARE) * kept)
    more = min(FEW_MORE, int(FEW_MORE_SHARE * kept)) if ending.spread is not None else 0
    plans = []
    for plan, outcome in curve.tried.items():
        if not passing_within(outcome, ending.limit).passed or plan == ending.plan:
            continue
        own = typical(outcome)
        far = own is not None and error is not None and FAR_BETTER * own <= error
        if len(plan) < least or (len(plan) <= kept + more and far):
            plans.append(plan)
    return sorted(plan for plan in plans if plan not in ending.passed_over)


def _held(
    holding: StabilityCheck, plan: Plan, point: Outcome, standing: Standing
) -> Search[Outcome | None]:
    """Return the outcome of a plan on its second draw; None where it does not hold."""
    holding.note(plan, point)
    outcome = yield from holding.judge(plan, "a better plan of the curve, on copies")
    if outcome.passed and standing.far(outcome, holding.problem.tolerance):
        outcome = yield from holding.judge(
            plan, "a better plan of the curve, once more", last=True
        )
    far = standing.far(outcome, holding.problem.tolerance)
    if not outcome.passed or not far or not holding.leaves_room(plan):
        return None
    if holding.problem.speed and not (yield from still_fast(holding.problem, plan)):
        return None
    return outcome


def _certified(
    holding: StabilityCheck, plan: Plan, outcome: Outcome, standing: Standing, draw: int
) -> Search[Plan]:
    """Certify a plan, and return what is left of it if that holds, else the plan."""
    mode = "none" if standing.ending.spread is not None else standing.certify
    trials = standing.seen
    trials.copies, trials.clear = standing.copies, clear_limit(holding.problem.tolerance, outcome)
    less = yield from certify(holding.problem, plan, mode, trials, draw if standing.copies else 0)
    if less == plan:
        return plan
    holding.drawn = draw
    recheck = yield from holding.judge(less, "what the certificate has left, judged afresh")
    return less if recheck.passed and holding.leaves_room(less) else plan
