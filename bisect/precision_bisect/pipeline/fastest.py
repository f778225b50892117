"""The plan to deploy: the fastest that holds, with room below the limit.

The smallest set says what breaks. What is deployed should be fast: few Casts, few products off
the tensor cores. Plans come from the cost graph under the law of rounding (`speed.cheapest`), and
from the answer with its gaps closed. The cheapest few are judged on copies, with TF32 in what
stays FP32 where libraries run FP32 so and it holds. Times are estimates: this is for runs of the
emulator.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from precision_bisect.layer_table import LayerName
from precision_bisect.options import DEFAULT_STRATEGY, Objective
from precision_bisect.pipeline.plan_estimates import Estimates
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import ROOM, overshoot, safe_error, unseen_share
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.endings import Deployable
from precision_bisect.runs.results.speed_report import AS_FAST, PlanToDeploy
from precision_bisect.runs.results.unseen import SAFE, as_safe
from precision_bisect.search.precision_curve import CURVE_DRAW
from precision_bisect.search.rounding_law import Law, worst
from precision_bisect.search.speed.cheapest import cheapest, with_room
from precision_bisect.search.speed.contenders import law_factor
from precision_bisect.search.speed.least_time import least_time
from precision_bisect.search.speed.moves import filled
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName, Latency, Outcome, Phase

JUDGED = 5
"""Plans that are judged beside those known to hold, at most. A bound on builds."""
LEARNT = 2
"""Of these, how many are proposed after the law's factor was learnt from the first."""
SAFER = 2
"""Plans of less error that are judged where none so far is safe on unseen inputs. A bound."""
FIRST_DRAW = CURVE_DRAW + 4096
"""The draws of copies for these plans: far from those of the answer and of the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """What is known before: the answer, its outcome on copies, the law's errors, and estimates.

    `names` are those of the candidates. By the `limit` records have shares of unseen inputs.
    `starts` are further plans that may hold, such as the margin. What was `refuted` is not
    proposed again. Plans of a variant stand beside those of the file, which are `beside` them,
    else None.
    """

    names: Sequence[LayerName]
    limit: float | None
    law: Law
    answer: Plan
    outcome: Outcome
    starts: Sequence[Plan] = ()
    estimates: Estimates
    refuted: frozenset[Plan] = field(default_factory=frozenset)
    beside: "Rivals | None" = None

    @property
    def errors(self) -> list[float]:
        """What each layer adds if it alone runs low, in network order; 0 where it is unknown."""
        alone = dict(zip(self.law.order, self.law.errors, strict=True))
        return [alone.get(layer, 0.0) for layer in range(self.estimates.plain.size)]

    @property
    def fastest_of_any(self) -> PlanToDeploy:
        """What no plan that holds beats: as fast as any could be by estimate, with fewest layers.

        Where the answer keeps some, every layer low has failed.
        """
        plain, tf32 = self.estimates.plain, self.estimates.tf32
        time = min(least_time(plain), least_time(tf32)) / (plain.time(range(plain.size)) or 1.0)
        record = self.deployable(self.answer, self.outcome).record
        kept = self.names[: min(1, len(self.answer))]
        return replace(record, kept=kept, time=time, unseen_share=None)

    def deployable(
        self,
        plan: Plan,
        outcome: Outcome,
        *,
        case: CaseName = "",
        latency: Latency | None = None,
        high_case: CaseName | None = None,
    ) -> Deployable:
        """Return a plan that holds, by this outcome, with its time beside those of others.

        Every layer high runs as in the `high_case`, where that is another one than the plan's.
        """
        costs, full = self.estimates.of(case)
        plain, tf32 = self.estimates.plain, self.estimates.tf32
        weights, of_file = self.estimates.instead["smallest"], self.beside or self
        file, fewest = of_file.estimates, of_file.answer.kept
        everything, file_weights = range(file.plain.size), file.instead["smallest"]
        # Time is told beside FP32 of the file as given, which is what its user has.
        high = file.of(case if high_case is None else high_case)
        high_ms, full_ms = (graph.time(everything) or 1.0 for graph in high)
        plain_ms = file.plain.time(everything) or 1.0
        record = PlanToDeploy(
            kept=[self.names[i] for i in plan.indices],
            error=worst(outcome),
            stability=outcome.evidence.stability,
            unseen_share=unseen_share(outcome, self.limit),
            time=costs.time(plan.kept) / high_ms,
            answer_time=file.of(case)[0].time(fewest) / high_ms,
            fp32_tf32_time=file.tf32.time(everything) / plain_ms,
            tf32_time=tf32.time(plan.kept) / plain_ms,
            full_batch_time=full.time(plan.kept) / full_ms,
            casts=sum(value.is_cast(plan.kept) for value in plain.values),
            weight_bytes=round(weights.time(plan.kept)),
            answer_weight_bytes=round(file_weights.time(fewest)),
            high_weight_bytes=round(file_weights.time(everything)),
            estimated=latency is None,
            latency=latency,
            tf32=case.startswith(TF32),
            fused=self.beside is not None,
        )
        return Deployable(plan=plan, outcome=outcome, case=case, record=record)


def rivals_of_form(
    given: Prepared, fused: Prepared, of_file: Rivals, estimates: Estimates
) -> Rivals:
    """Return what is known of plans of the fused form: by names, what is known of the file's.

    An operator put together rounds what the last of its pieces does.
    """
    names = fused.case.model.table.names
    numbers = {name: i for i, name in enumerate(names)}

    def renumbered(plan: Plan) -> Plan:
        kept = (of_file.names[i] for i in plan.indices)
        return Plan.of(numbers[name] for name in kept if name in numbers)

    errors: dict[str, float] = dict(zip(of_file.names, of_file.errors, strict=True))
    rounding = {
        output: errors[layer.name]
        for layer in given.case.model.table.candidates
        for output in layer.outputs
    }
    for layer in fused.case.model.table.candidates:
        errors.setdefault(layer.name, max(rounding.get(name, 0.0) for name in layer.outputs))
    return Rivals(
        names=names,
        limit=of_file.limit,
        law=Law.of([errors[name] for name in names], Plan.of(())),
        answer=renumbered(of_file.answer),
        outcome=of_file.outcome,
        starts=[renumbered(plan) for plan in of_file.starts],
        estimates=estimates,
        beside=of_file,
    )


def seeks_fastest(prepared: Prepared) -> bool:
    """Whether a fast plan is looked for: where the answer is no end in itself.

    A strategy that is asked for by its name, whole modules, a share of unseen inputs and speed
    limits are such ends.
    """
    options = prepared.case.options
    is_end = (
        prepared.loaded.strategy.name != DEFAULT_STRATEGY
        or options.by == "module"
        or options.risk is not None
        or options.speed.given
    )
    return options.objective != "fewest" and options.until == "answer" and not is_end


def fastest(
    problem: Problem,
    rivals: Rivals,
    *,
    copies: bool,
    objective: Objective = "fastest",
    case: CaseName = "",
    floor: float = 0.0,
) -> Search[Deployable | None]:
    """Return the plan to deploy, which may be the answer.

    It passes on copies in its own trial, and is estimated at most `AS_FAST` slower than the
    answer, unless only what is slower is safe on unseen inputs. Where nothing beats every layer
    high at the samples' batch, a full one decides. What the estimates have for the `objective`
    takes the place of time. In another `case`, where every layer high has the error `floor`, the
    answer has a trial of its own. None without a limit on figures, and where nothing passes in
    that case.
    """
    limit = problem.tolerance
    if limit is None:
        return None
    check = StabilityCheck(problem=problem, copies=copies, drawn=FIRST_DRAW)
    answer = rivals.outcome
    if case:
        answer = yield from check.judge(rivals.answer, "the answer, in TF32", phase=Phase.SPEED)
    outcomes = {rivals.answer: answer}
    aim = math.sqrt((ROOM * limit) ** 2 - floor**2)
    # Where every layer low holds, and is not safe, only plans of less error are worth a trial.
    unsafe = not rivals.answer and answer.passed and overshoot(answer, limit) > 1
    costs, plans = _deciding(rivals, aim, objective, case, alone=unsafe)

    def judge(plans: Sequence[Plan], most: int) -> Search[float]:
        """Judge plans until there are `most`; return the factor by which the law has missed."""
        missed = 1.0
        fresh = [plan for plan in plans if plan not in outcomes]
        for plan in fresh[: most + 1 - len(outcomes)]:
            outcome = yield from check.judge(
                plan, "a plan of little cost, on copies", phase=Phase.SPEED
            )
            outcomes[plan] = outcome
            error = worst(outcome)
            if error is not None and math.isfinite(error):
                missed = max(missed, math.sqrt(max(0.0, error**2 - floor**2)) / (aim or 1.0))
        return missed

    missed = yield from judge(plans, JUDGED - LEARNT)
    # The law's factor is learnt from what it has missed, once.
    if missed > 1.0:
        yield from judge(_candidates(rivals, costs, aim / missed, case), JUDGED)
    best = _best(outcomes, costs, limit)
    if best is not None and overshoot(outcomes[best], limit) > 1:
        most_ms = AS_FAST * costs.time(best.kept)
        roomier = [with_room(costs, rivals.errors, best, most_ms)]
        yield from judge(_no_slower(rivals, roomier, costs, case), JUDGED)
        best = _best(outcomes, costs, limit)
    for _ in range(SAFER):
        if best is None or as_safe(unseen_share(outcomes[best], limit), None):
            break
        # Whatever is faster than every layer high, which is safe.
        less = safer_aim(outcomes, limit, floor) / law_factor(rivals.errors, outcomes, floor)
        safer = _candidates(rivals, costs, less, case, safer=True)
        yield from judge(safer, len(outcomes))
        best = _best(outcomes, costs, limit)
    return None if best is None else rivals.deployable(best, outcomes[best], case=case)


def safer_aim(outcomes: Mapping[Plan, Outcome], limit: float, floor: float) -> float:
    """Return what low layers may add to the `floor` for a plan to be safe, by these outcomes."""
    safe = max(safe_error(outcome, limit) for outcome in outcomes.values() if outcome.passed)
    return math.sqrt(max(0.0, safe**2 - floor**2))


def _best(outcomes: Mapping[Plan, Outcome], costs: CostGraph, limit: float) -> Plan | None:
    passing = {plan: outcome for plan, outcome in outcomes.items() if outcome.passed}
    return chosen(passing, {plan: costs.time(plan.kept) for plan in passing}, limit)


def _deciding(
    rivals: Rivals, aim: float, objective: Objective, case: CaseName, *, alone: bool
) -> tuple[CostGraph, Sequence[Plan]]:
    """Return the costs that decide, and the plans that may be as fast by them.

    They are those of the samples' batch if a plan beats every layer high there. Where the answer
    stands `alone`, as every layer low does, there are no such plans.
    """

    def candidates(costs: CostGraph) -> Sequence[Plan]:
        return () if alone else _candidates(rivals, costs, aim, case)

    if objective in rivals.estimates.instead:
        costs = rivals.estimates.instead[objective]
        return costs, candidates(costs)
    costs, full_batch = rivals.estimates.of(case)
    slowest = (1 - AS_FAST) * costs.time(range(costs.size))
    if least_time(costs) <= slowest:
        plans = candidates(costs)
        if any(costs.time(plan.kept) <= slowest for plan in (rivals.answer, *plans)):
            return costs, plans
    return full_batch, candidates(full_batch)


def _candidates(
    rivals: Rivals, costs: CostGraph, aim: float, case: CaseName, *, safer: bool = False
) -> list[Plan]:
    """Return plans that may be as fast as the answer: those known before, then the cheapest.

    Those that are to be `safer` only have to be faster than every layer high.
    """
    starts = [rivals.answer, *rivals.starts]
    # A layer whose forecast is infinite fails every plan that has it low.
    pinned = frozenset(i for i, error in enumerate(rivals.errors) if math.isinf(error))
    plans = {
        *starts,
        *cheapest(costs, rivals.errors, aim, starts, pinned),
        *(Plan.of(filled(costs, plan.kept)) for plan in starts),
    }
    high_ms = costs.time(range(costs.size))
    return sorted(
        [plan for plan in plans if plan not in rivals.refuted and costs.time(plan.kept) < high_ms]
        if safer
        else _no_slower(rivals, plans, costs, case),
        # Plans that are known cost no trial, so they come first.
        key=lambda plan: (plan not in starts, costs.time(plan.kept), plan),
    )


def _no_slower(
    rivals: Rivals, plans: Iterable[Plan], costs: CostGraph, case: CaseName
) -> list[Plan]:
    """Return the plans that were not refuted, and are about as fast as the answer."""
    batch, full = rivals.estimates.of(case)
    slowest = [
        (graph, (1 + AS_FAST) * graph.time(rivals.answer.kept))
        for graph in ((costs, batch) if costs is full else (costs,))
    ]
    return [
        plan
        for plan in plans
        if len(plan) < costs.size
        and plan not in rivals.refuted
        and all(graph.time(plan.kept) <= most_ms for graph, most_ms in slowest)
    ]


def chosen(
    passing: Mapping[Plan, Outcome], times: Mapping[Plan, float], limit: float
) -> Plan | None:
    """Return the fewest layers of the safe plans that are as fast as any of these.

    Where none is `SAFE` on unseen inputs, it is the safest of those as fast as any. It has room
    if one of them has, and is one of those that have `times`, in any unit.
    """
    shares = {plan: unseen_share(passing[plan], limit) or 0.0 for plan in times}
    safe = [plan for plan in times if as_safe(shares[plan], None)]
    least = min((times[plan] for plan in safe or times), default=0.0)
    near = [plan for plan in safe or times if times[plan] <= (1 + AS_FAST) * least]
    share = SAFE if safe else min(map(shares.__getitem__, near), default=0.0)
    near = [plan for plan in near if shares[plan] <= share]
    best = [plan for plan in near if figure_of_copies(passing[plan]) <= ROOM * limit] or near
    return min(best, key=lambda plan: (len(plan), times[plan], plan), default=None)


def figure_of_copies(outcome: Outcome) -> float:
    """Return the largest error over copies, infinity where there is no figure."""
    error = worst(outcome)
    return math.inf if error is None else error
