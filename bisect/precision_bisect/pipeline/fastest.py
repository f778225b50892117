"""The plan to deploy: the fastest that holds, with room below the limit.

The smallest set says what breaks. What is deployed should be fast: few Casts, few products off
the tensor cores. Plans come from the cost graph under the law of rounding (`speed.cheapest`), and
from the answer with its gaps closed. The cheapest few are judged on copies. Times are estimates:
this is for runs of the emulator.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.endings import Deployable, Ending
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.search.precision_curve import CURVE_DRAW
from precision_bisect.search.rounding_law import Law, worst
from precision_bisect.search.speed.cheapest import cheapest
from precision_bisect.search.speed.moves import filled
from precision_bisect.trial import Outcome, Phase

JUDGED = 5
"""Plans that are judged beside those known to hold, at most. A bound on builds."""
ROOM = 0.8
"""Share of the limit that a plan to deploy stays below, where that is nearly as fast."""
AS_FAST = 0.02
"""Share of the time by which plans count as equally fast. Repeated measurements of one engine
differ by about that."""
FIRST_DRAW = CURVE_DRAW + 4096
"""The draws of copies for these plans: far from those of the answer and of the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """What is known before: plans that hold, by their outcome on copies, and the law's errors.

    `costs` is the graph; `base_ms` the estimated time with every layer low.
    """

    law: Law
    holding: dict[Plan, Outcome]
    costs: CostGraph
    base_ms: float
    refuted: frozenset[Plan] = field(default_factory=frozenset)

    @property
    def errors(self) -> list[float]:
        """What each layer adds if it alone runs low, in network order; 0 where it is unknown."""
        alone = dict(zip(self.law.order, self.law.errors, strict=True))
        return [alone.get(layer, 0.0) for layer in range(self.costs.size)]

    def time(self, plan: Plan) -> float:
        """Return the estimated time of a plan as a share of that with every layer high."""
        everything = self.base_ms + self.costs.cost(range(self.costs.size))
        return (self.base_ms + self.costs.cost(plan.kept)) / everything if everything else 1.0


def fastest(
    problem: Problem, rivals: Rivals, answer: Plan, *, copies: bool
) -> Search[Deployable | None]:
    """Return the plan to deploy beside an answer, None without a limit on figures.

    The answer is the first of the rivals that hold.
    """
    limit = problem.tolerance
    if limit is None or answer not in rivals.holding:
        return None
    check = StabilityCheck(problem=problem, copies=copies, drawn=FIRST_DRAW)
    outcomes = dict(rivals.holding)
    aim = ROOM * limit
    for _ in range(2):
        plans = [plan for plan in _candidates(rivals, aim) if plan not in outcomes]
        missed = 1.0
        for plan in plans[: JUDGED + len(rivals.holding) - len(outcomes)]:
            outcome = yield from check.judge(
                plan, "a plan of little cost, on copies", phase=Phase.SPEED
            )
            outcomes[plan] = outcome
            error = worst(outcome)
            if error is not None and math.isfinite(error):
                missed = max(missed, error / (ROOM * limit))
        # The law's factor is learnt from what it has missed, once.
        if missed == 1.0:
            break
        aim /= missed
    passing = {plan: outcome for plan, outcome in outcomes.items() if outcome.passed}
    return _chosen(passing, rivals, limit, answer)


def _candidates(rivals: Rivals, aim: float) -> list[Plan]:
    """Return plans that may be faster than those known to hold, the cheapest first."""
    costs, holding = rivals.costs, list(rivals.holding)
    pinned = frozenset(i for i, error in enumerate(rivals.errors) if math.isinf(error))
    plans = {
        *cheapest(costs, rivals.errors, aim, holding, pinned),
        *(Plan.of(filled(costs, plan.kept)) for plan in holding),
    }
    least = min(rivals.time(plan) for plan in holding)
    better = [
        plan
        for plan in plans - rivals.refuted
        if rivals.time(plan) <= (1 + AS_FAST) * least and len(plan) < costs.size
    ]
    return sorted(better, key=lambda plan: (rivals.time(plan), plan))


def _chosen(
    passing: Mapping[Plan, Outcome], rivals: Rivals, limit: float, answer: Plan
) -> Deployable | None:
    """Return the answer where it is as fast as any and has room, else what is and has most."""
    if not passing:
        return None
    errors = {plan: figure_of_copies(outcome) for plan, outcome in passing.items()}
    times = {plan: rivals.time(plan) for plan in passing}
    least = min(times.values())
    near = [plan for plan, time in times.items() if time <= (1 + AS_FAST) * least]
    best = [plan for plan in near if errors[plan] <= ROOM * limit] or near
    plan = answer
    if answer not in best:
        plan = min(best, key=lambda plan: (errors[plan], times[plan], plan))
    return Deployable(
        plan=plan, error=worst(passing[plan]), time=times[plan], answer_time=times.get(answer)
    )


def figure_of_copies(outcome: Outcome) -> float:
    """Return the largest error over copies, infinity where there is no figure."""
    error = worst(outcome)
    return math.inf if error is None else error


def plan_to_deploy(ending: Ending, names: Sequence[LayerName]) -> PlanToDeploy | None:
    """Return the plan to deploy for a result, by the `names` of the candidates."""
    deployable = ending.deploy
    if deployable is None:
        return None
    return PlanToDeploy(
        kept=[names[i] for i in deployable.plan.indices],
        error=deployable.error,
        time=deployable.time,
        answer_time=deployable.answer_time,
        estimated=True,
    )
