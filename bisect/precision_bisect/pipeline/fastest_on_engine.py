"""The plan to deploy on an engine: a few plans of little cost, built, judged and timed.

Estimates rank plans badly, 0.7 in the median, so plans of several kinds compete and the engine
decides. All are judged with what the engine does to FP32 where it is deployed, and timed in turns
with every layer high there.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, takewhile

from precision_bisect.machine.stopping import STOPS
from precision_bisect.options import Objective
from precision_bisect.pipeline.chart import latency_of
from precision_bisect.pipeline.elsewhere import (
    engine_of,
    error_of_fp32,
    fp32_in_tf32,
    has_tf32,
    over_the_limit,
    products,
)
from precision_bisect.pipeline.fastest import FIRST_DRAW, LEARNT, Rivals, chosen, safer_aim
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import ROOM, overshoot, telling_limit, unseen_share
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Search
from precision_bisect.runs.results.endings import Deployable
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.search.budget import BudgetSpent
from precision_bisect.search.driver import CrashLoop, Driver
from precision_bisect.search.speed.contenders import contenders, law_factor
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName, Kind, Outcome, Phase, Proposal, SampleSet, Trial

TRIED = 5
"""Plans that are built beside the answer, at most. A bound."""
LEAST = 2
"""Plans that are built whatever they take: with fewer the engine decides nothing."""
SHARE = 0.2
"""Share of a run's time that further plans take, by what trials took."""
CAST_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)
"""What the estimate of a Cast is multiplied by, to rank plans as the engine did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How plans compete: each in a trial that differs from this `trial` by its plan alone.

    `multiplying` are the layers with products. Trials of the run took `spent_s` before. The error
    of every layer high is the `floor`.
    """

    rivals: Rivals
    limit: float
    trial: Proposal
    multiplying: Collection[int]
    spent_s: float
    floor: float = 0.0

    def judge(self, plan: Plan, reason: str) -> Search[Outcome]:
        """Return what a plan comes to in a build as deployed, timed and on copies."""
        (outcome,) = yield (replace(self.trial, plan=plan, phase=Phase.SPEED, reason=reason),)
        return outcome

    def has_time(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether one more plan, as slow as the slowest, keeps within the share of the time.

        Times are the ledger's, so that a resumed run decides alike.
        """
        took = [outcome.wall_s for outcome in outcomes]
        if len(took) < LEAST:
            return True
        return sum(took) + max(took) <= SHARE / (1 - SHARE) * self.spent_s

    @property
    def costs(self) -> CostGraph:
        """What plans cost by estimate."""
        return self.rivals.estimates.of(self.trial.case)[0]


def deployable_on_engine(
    prepared: Prepared, driver: Driver, rivals: Rivals, samples: SampleSet
) -> Search[Deployable | None]:
    """Return the plan to deploy; None without a limit on figures, or where nothing is timed.

    Where FP32 in TF32, as libraries run it, holds with room, so do plans. Else they compete
    without it. If none holds, it is the answer.
    """
    limit, trial = prepared.problem.tolerance, fp32_in_tf32(prepared, samples)
    if limit is None:
        return None
    floor = yield from error_of_fp32(prepared, samples)
    # FP32 in TF32 has used up what plans would need: they compete without it.
    if floor > ROOM * limit:
        floor, trial = 0.0, replace(trial, case="", draw=trial.draw and FIRST_DRAW)
    contest = Contest(
        rivals=rivals,
        limit=limit,
        trial=trial,
        multiplying=products(prepared.case.model),
        spent_s=spent_s(driver.every_trial, trial.case),
        floor=floor,
    )
    deployable = yield from fastest_on_engine(contest, prepared.case.options.objective)
    if deployable is None:
        return answer_to_deploy(prepared, driver, rivals, samples)
    return deployable if deployable.case else beside_fp32(prepared, driver, deployable, samples)


def answer_to_deploy(
    prepared: Prepared, driver: Driver, rivals: Rivals, samples: SampleSet
) -> Deployable:
    """Return the answer as it was searched, with an engine's time if it has one."""
    latency = latency_of(driver, rivals.answer)
    deployable = rivals.deployable(rivals.answer, rivals.outcome, latency=latency)
    return beside_fp32(prepared, driver, deployable, samples)


def beside_fp32(
    prepared: Prepared, driver: Driver, deployable: Deployable, samples: SampleSet
) -> Deployable:
    """Return a plan, its time beside that of FP32: with TF32 where FP32 holds so, else without."""
    fp32, record = driver.recorded(fp32_in_tf32(prepared, samples)), deployable.record
    limit = telling_limit(prepared.case.model, prepared.problem.tolerance)
    share = None if fp32 is None else unseen_share(fp32, limit)
    rivals = fp32 is not None and fp32.passed and as_safe(share, record.unseen_share)
    baseline = fp32.evidence.latency if fp32 is not None and rivals else None
    if record.tf32 and baseline and not record.fused:
        # It was timed in turns with FP32 as that runs here.
        return deployable
    if record.tf32 or record.fused:
        # The form was timed in turns with its own FP32, which is not what the file has.
        baseline = baseline or latency_of(driver, prepared.everything)
    latency = record.latency
    if latency is None or baseline is None or not latency.median_ms:
        return deployable
    high_ms = baseline.median_ms
    speedup = high_ms / latency.median_ms
    return deployable.timed(replace(latency, baseline_ms=high_ms, speedup=speedup))


def with_tf32_first(
    prepared: Prepared,
    driver: Driver,
    rivals: Rivals,
    deployable: Deployable,
    samples: SampleSet,
    *,
    of_file: Prepared | None = None,
) -> Search[Sequence[Deployable]]:
    """Return a plan as libraries run it, with TF32, where it holds so; then as it was judged.

    TF32 is left out, too, where it has no room with it but without. A plan that it does not change
    has it by the same trial. A fused form stands beside the run `of_file`.
    """
    if deployable.record.tf32:
        return [deployable]
    plan, outcome, file = deployable.plan, None, of_file or prepared
    fp32 = driver.recorded(fp32_in_tf32(file, samples))
    in_tf32 = partial(
        rivals.deployable,
        plan,
        case=prepared.case.named(TF32),
        high_case=TF32 if fp32 is not None and fp32.passed else "",
    )
    if has_tf32(prepared) and engine_of(prepared, plan, held_in_tf32=False).in_tf32:
        return [replace(deployable, record=in_tf32(deployable.outcome).record)]
    # The plan stands without it. What is heavy is not opened for one plan.
    with driver.standing():
        phase = Phase.EXPLANATION if prepared.heavy else Phase.SPEED
        without = deployable.outcome
        outcome = yield from held_in_tf32(prepared, driver, plan, samples, without, phase)
    if outcome is None:
        return [deployable]
    held = in_tf32(outcome, latency=outcome.evidence.latency)
    return [beside_fp32(file, driver, held, samples), deployable]


def held_in_tf32(
    prepared: Prepared,
    driver: Driver,
    plan: Plan,
    samples: SampleSet,
    without: Outcome | None,
    phase: Phase,
) -> Search[Outcome | None]:
    """Return what a plan came to with TF32 where it holds so, as `with_tf32_first` has it.

    It is known what it came to `without`.
    """
    limit = prepared.problem.tolerance
    decided = engine_of(prepared, plan, held_in_tf32=False).in_tf32
    if decided or limit is None or not has_tf32(prepared):
        return None
    if over_the_limit(prepared, driver, plan, samples) is not None:
        return None
    trial = replace(fp32_in_tf32(prepared, samples), plan=plan, phase=phase)
    (outcome,) = yield (replace(trial, reason="what leaves, with TF32"),)
    had_room = without is None or overshoot(without, limit) <= 1
    no_room = had_room and overshoot(outcome, limit) > 1
    return outcome if outcome.passed and not no_room else None


def spent_s(trials: Sequence[Trial], case: CaseName) -> float:
    """Return what trials took before the first of a contest, in seconds."""

    def before(trial: Trial) -> bool:
        proposal = trial.proposal
        competes = proposal.phase is Phase.SPEED and proposal.kind is Kind.REBUILD
        return not (competes and proposal.case == case)

    return sum(trial.outcome.wall_s for trial in takewhile(before, trials))


def fastest_on_engine(
    contest: Contest, objective: Objective = "fastest"
) -> Search[Deployable | None]:
    """Return the fastest of some plans that hold, None where the engine times none.

    The answer is one of them. What the first have shown, of the law's factor, of Casts and of
    unseen inputs, counts in the choice of the last. What the estimates have for the `objective`
    takes the place of time.
    """
    rivals, limit = contest.rivals, contest.limit
    answer = rivals.outcome
    if contest.trial.case or speedup_of(answer) is None:
        answer = yield from contest.judge(rivals.answer, "the answer, as deployed")
    if answer.verdict is not None and speedup_of(answer) is None:
        return None
    outcomes, costs, floor = {rivals.answer: answer}, contest.costs, contest.floor
    aim = math.sqrt((ROOM * limit) ** 2 - floor**2)
    if not rivals.answer and answer.passed:
        # Nothing has to be kept but for safety.
        aim = safer_aim(outcomes, limit, floor)
    # The answer stands: whatever ends this early costs only further plans.
    with suppress(BudgetSpent, CrashLoop, *STOPS, KeyboardInterrupt):
        tried: list[Outcome] = []
        for most in (TRIED - LEARNT, TRIED):
            plans = contenders(
                costs,
                rivals.errors,
                aim / law_factor(rivals.errors, outcomes, floor),
                [rivals.answer, *rivals.starts],
                full_batch=rivals.estimates.of(contest.trial.case)[1],
                multiplying=contest.multiplying,
            )
            fresh = [plan for plan in plans if plan not in rivals.refuted | outcomes.keys()]
            for plan in fresh[: most - len(tried)]:
                if contest.has_time(tried):
                    outcomes[plan] = yield from contest.judge(plan, "a plan of little cost")
                    tried.append(outcomes[plan])
            if not contest.has_time(tried):
                break
            costs = _corrected(contest.costs, outcomes)
            # Where none is safe on unseen inputs, the last have to have less error.
            if any(outcome.passed for outcome in outcomes.values()):
                aim = safer_aim(outcomes, limit, floor)
    passing = {plan: outcome for plan, outcome in outcomes.items() if outcome.passed}
    times = _times(passing)
    if objective in rivals.estimates.instead:
        instead = rivals.estimates.instead[objective]
        times = {plan: instead.time(plan.kept) for plan in times}
    best = chosen(passing, times, limit)
    if best is None:
        return None
    latency = passing[best].evidence.latency
    return rivals.deployable(best, passing[best], case=contest.trial.case, latency=latency)


def speedup_of(outcome: Outcome) -> float | None:
    """Return how many times as fast as every layer high a plan was, None without a figure."""
    latency = outcome.evidence.latency
    return None if latency is None else latency.speedup


def _times(outcomes: Mapping[Plan, Outcome]) -> dict[Plan, float]:
    """Return the times of plans that have one, as shares of that with every layer high."""
    gains = {plan: speedup_of(outcome) for plan, outcome in outcomes.items()}
    return {plan: 1 / gain for plan, gain in gains.items() if gain}


def _corrected(costs: CostGraph, outcomes: Mapping[Plan, Outcome]) -> CostGraph:
    """Return the costs with Casts priced so that plans are ordered as the engine timed them."""
    times = {Plan.all_high(costs.size): 1.0} | _times(outcomes)

    def alike(graph: CostGraph) -> int:
        estimates = {plan: graph.time(plan.kept) for plan in times}
        pairs = combinations(times, 2)
        return sum((times[a] < times[b]) == (estimates[a] < estimates[b]) for a, b in pairs)

    graphs = [
        replace(
            costs,
            values=[replace(value, cast_ms=factor * value.cast_ms) for value in costs.values],
        )
        for factor in CAST_FACTORS
    ]
    # By order, as the contest needs no more, and absolute times differ by machine.
    return max(graphs, key=alike)
