"""The plan to deploy: the fastest that holds, with room below the limit.

The smallest set says what breaks. What is deployed should be fast: few Casts, few products off
the tensor cores. Plans come from the cost graph under the law of rounding (`speed.cheapest`), and
from the answer with its gaps closed. The cheapest few are judged on copies, and timed where there
is an engine.
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
from precision_bisect.search.speed.measuring import all_high_ms, measure_pace
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
    """Return the plan to deploy beside an answer, None where nothing can be timed.

    The answer is the first of the rivals that hold.
    """
    limit = problem.tolerance
    if limit is None or answer not in rivals.holding:
        return None
    check = StabilityCheck(
        problem=problem, copies=copies, rebuilds=problem.builds, drawn=FIRST_DRAW
    )
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
    timed = yield from _timed(
        problem, rivals, [p for p, outcome in outcomes.items() if outcome.passed]
    )
    return _chosen({plan: (outcomes[plan], time) for plan, time in timed}, limit, problem, answer)


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


def _timed(
    problem: Problem, rivals: Rivals, plans: Sequence[Plan]
) -> Search[list[tuple[Plan, float]]]:
    """Return the plans with their time as a share of every layer high's, the fastest first."""
    if not problem.builds:
        return sorted(((plan, rivals.time(plan)) for plan in plans), key=lambda pair: pair[1])
    high_ms = yield from all_high_ms(problem)
    times = []
    if high_ms is None:
        return []
    for plan in sorted(plans):
        measured = yield from measure_pace(plan, high_ms, "how fast the plan is")
        if not isinstance(measured, Outcome) and measured.outcome.passed:
            times.append((plan, 1 / measured.pace.speedup))
    return sorted(times, key=lambda pair: pair[1])


def _chosen(
    timed: Mapping[Plan, tuple[Outcome, float]], limit: float, problem: Problem, answer: Plan
) -> Deployable | None:
    """Return the answer where it is as fast as any and has room, else what is and has most."""
    if not timed:
        return None
    errors = {plan: figure_of_copies(outcome) for plan, (outcome, _) in timed.items()}
    least = min(time for _, time in timed.values())
    near = [plan for plan, (_, time) in timed.items() if time <= (1 + AS_FAST) * least]
    roomy = [plan for plan in near if errors[plan] <= ROOM * limit]
    best = roomy or near
    plan = answer
    if answer not in best:
        plan = min(best, key=lambda plan: (errors[plan], timed[plan][1], plan))
    return Deployable(
        plan=plan,
        error=worst(timed[plan][0]),
        time=timed[plan][1],
        answer_time=timed[answer][1] if answer in timed else None,
        estimated=not problem.builds,
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
        estimated=deployable.estimated,
    )
