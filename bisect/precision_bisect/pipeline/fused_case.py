"""The model with its norms put together: a case of the run beside the file as it stands.

An engine computes a norm that is one operator in FP32 inside, and stores every step of one in
pieces. So as soon as every layer low of the file fails, that of its fused form is judged. Once
the file's answer is known, plans of the form compete with the plan to deploy: every layer low if
that holds, else what the answer keeps beside the pieces, or less, and plans of little cost.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from precision_bisect.graphs.fusing.norms import SINCE
from precision_bisect.graphs.typed.pinning import pinned_layers
from precision_bisect.options import Objective
from precision_bisect.pipeline.choosing import on_samples
from precision_bisect.pipeline.elsewhere import as_deployed, error_of_fp32, in_tf32, products
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.fastest import FIRST_DRAW, Rivals, fastest, rivals_of_form
from precision_bisect.pipeline.fastest_on_engine import (
    Contest,
    beside_fp32,
    fastest_on_engine,
    spent_s,
    with_tf32_first,
)
from precision_bisect.pipeline.fused_run import is_tried, over_fused_form
from precision_bisect.pipeline.plan_estimates import Estimates, estimates_of
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import ROOM
from precision_bisect.pipeline.stability import StabilityCheck, one
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.runs.results.endings import Deployable, Ending
from precision_bisect.runs.results.fused_form import FusedForm
from precision_bisect.runs.results.speed_report import AS_FAST, PlanToDeploy
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.search.combinators import Batch, Outcomes, mapped
from precision_bisect.search.driver import Driver
from precision_bisect.search.rounding_law import worst
from precision_bisect.search.sensitivity import figure_of
from precision_bisect.search.workers import Evaluate
from precision_bisect.settings.targets import FUSED, TF32
from precision_bisect.trial import CaseName, Outcome, Phase, Proposal, SampleSet

DROPPED = 16
"""Trials that drop what the fused form holds without, at most. A bound."""


@dataclass(slots=True, kw_only=True)
class FusedCase:
    """The fused form of the run that is `given`, made once something asks for it.

    `prepared` is the run over it, None where it is not tried, or cannot be made. The `best` plan
    holds: it is what to deploy, or is no better than the file's. None until that is decided.
    """

    given: Prepared
    prepared: Prepared | None = None
    best: tuple[Plan, Outcome] | None = None
    _made: bool = False
    _estimates: Estimates | None = None
    _at_work: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def beside(self, driver: Driver) -> Iterator[None]:
        """Have its trials evaluated, here or by workers of its own, which end then."""
        with self._at_work:
            for case in (FUSED, f"{TF32},{FUSED}"):
                driver.cases.add(case, self._evaluate)
            yield

    def answered(self, batch: Batch) -> Search[Outcomes]:
        """Answer a batch of the run; where every layer low fails, judge that of this form, too."""
        outcomes = yield batch
        for proposal, outcome in zip(batch, outcomes, strict=True):
            ends = proposal.phase is Phase.PREFLIGHT and not proposal.plan and not proposal.case
            if ends and outcome.failed and not self.given.case.sets.others:
                fused = yield from self._made_for(proposal.samples)
                if fused is not None:
                    yield (self._all_low(proposal.samples),)
                    fused.rest()
        return outcomes

    def fastest(
        self, driver: Driver, ending: Ending, rivals: Rivals
    ) -> Search[Sequence[Deployable]]:
        """Return the plans of this form to deploy in place of the file's, the best first.

        Before the file has one there are some only if by estimate no plan of the file that holds
        could take the place of this form with every layer low.
        """
        deploy, samples = ending.deploy, ending.samples
        fused = yield from self._made_for(samples)
        objective = self.given.case.options.objective
        by_time = fused is not None and fused.backend.emulated and objective != "smallest"
        if fused is None or (deploy is None and not by_time):
            return ()
        of_file = rivals.fastest_of_any if deploy is None else deploy.record
        self._estimates = self._estimates or estimates_of(fused)
        own = rivals_of_form(self.given, fused, rivals, self._estimates)
        if deploy is None:
            (low,) = yield (replace(self._all_low(samples), phase=Phase.SPEED),)
            lowest = own.deployable(Plan.of(()), low, case=self.case).record
            safe = low.passed and as_safe(lowest.unseen_share, None)
            if not safe or not is_better(lowest, of_file, objective):
                fused.rest()
                return ()
        # The fewest of this form first: where they are none and safe, no plan is faster.
        best, failed = yield from on_samples(samples, self._in_case(self._fewest(fused, own)))
        if best is None:
            return ()
        own = replace(own, answer=best[0], outcome=best[1], refuted=failed)
        deployable = own.deployable(*best, case=self.case, latency=best[1].evidence.latency)
        if best[0] or not as_safe(deployable.record.unseen_share, None):
            if deploy is None:
                return ()
            # TF32's own error takes part of the limit before any layer is low.
            floor = (yield from error_of_fp32(self.given, samples)) if self._in_tf32 else 0.0
            if fused.backend.emulated:
                search = self._in_case(self._by_estimate(fused, own, floor))
                found = yield from on_samples(samples, search)
            else:
                found = yield from self._on_engine(fused, driver, own, samples, floor)
            deployable = found or deployable
        deployable = beside_fp32(self.given, driver, deployable, samples)
        if not self._in_tf32:
            self._at_work.enter_context(in_tf32(fused, driver.cases))
        candidates = yield from with_tf32_first(
            fused, driver, own, deployable, samples, of_file=self.given
        )
        better = [plan for plan in candidates if is_better(plan.record, of_file, objective)]
        if not better:
            self.best = deployable.plan, deployable.outcome
        return better

    def record(self, driver: Driver, samples: SampleSet) -> FusedForm | None:
        """Return what the result says of this form by samples, None where it was not judged."""
        fused = self.prepared
        if fused is None:
            return None
        model = fused.case.model
        names = {layer.name for layer in self.given.case.model.table.layers}
        # What has a name that the file has not is what was put together.
        fresh = (layer.op_type for layer in model.table.layers if layer.name not in names)
        low = driver.recorded(self._all_low(samples))
        kept, outcome = self.holding or (None, None)
        return FusedForm(
            model=model.digest,
            operators=Counter(kind for kind in fresh if kind in SINCE),
            candidates=len(model.table.candidates),
            all_low=None if low is None else low.error,
            kept=None if kept is None else [name for name in model.table.names if name in kept],
            error=None if outcome is None else worst(outcome),
            stability=None if outcome is None else outcome.evidence.stability,
            pinned=pinned_layers(model, fused.case.pair.low_form),
        )

    @property
    def holding(self) -> tuple[frozenset[str], Outcome] | None:
        """The layers that the best plan keeps, and its outcome, None where none holds."""
        if self.prepared is None or self.best is None:
            return None
        names = self.prepared.case.model.table.names
        return frozenset(names[i] for i in self.best[0].indices), self.best[1]

    @property
    def case(self) -> CaseName:
        """The case of its trials: in TF32 where FP32 as libraries run it holds with room."""
        return f"{TF32},{FUSED}" if self._in_tf32 else FUSED

    @property
    def _in_tf32(self) -> bool:
        engines = [run.case.options.engine for run in (self.given, self.prepared) if run]
        return [engine.in_tf32 for engine in engines] == [False, True]

    def _made_for(self, samples: SampleSet) -> Search[Prepared | None]:
        """Return the run over this form, which is made with the first call."""
        if not self._made:
            self._made, limit = True, self.given.problem.tolerance
            if is_tried(self.given) and limit is not None:
                floor = yield from error_of_fp32(self.given, samples)
                self.prepared = over_fused_form(self.given, tf32=floor <= ROOM * limit)
        return self.prepared

    def _evaluate(self) -> Evaluate:
        assert self.prepared is not None
        folder = self.given.case.options.folder
        return self._at_work.enter_context(evaluators(self.prepared, folder)).evaluate

    def _all_low(self, samples: SampleSet) -> Proposal:
        reason = "every layer low, norms whole"
        return Proposal(
            plan=Plan.of(()), phase=Phase.PREFLIGHT, samples=samples, case=self.case, reason=reason
        )

    def _in_case(self, search: Search[T]) -> Search[T]:
        return mapped(search, ask=lambda proposal: replace(proposal, case=self.case))

    def _fewest(
        self, fused: Prepared, rivals: Rivals
    ) -> Search[tuple[tuple[Plan, Outcome] | None, frozenset[Plan]]]:
        """Return a plan that holds on copies, with few layers, and those that have failed there.

        None for the first where none does.
        """
        failed: frozenset[Plan] = frozenset()
        low = yield from one(Plan.of(()), Phase.SPEED, "every layer low, norms whole")
        kept = rivals.answer
        of_file = {*self.given.case.model.table.names}
        # What feeds a norm may leave the range, and be read by that in the high type alone.
        whole = kept.with_(i for i, name in enumerate(rivals.names) if name not in of_file)
        for plan in [Plan.of(())] * low.passed + [kept] * bool(kept) + [whole]:
            outcome = yield from self._on_copies(fused, plan)
            if not outcome.passed:
                failed |= {plan}
                continue
            if plan and not fused.problem.builds:
                steps = yield from dropped(plan, rivals.errors)
                most = max(ROOM * (fused.problem.tolerance or 0.0), outcome.error or 0.0)
                judge = partial(self._on_copies, fused)
                fewer, refuted = yield from fewest_on_copies(steps, most, judge)
                failed |= refuted
                if fewer is not None:
                    return fewer, failed
            return (plan, outcome), failed
        return None, failed

    def _on_copies(self, fused: Prepared, plan: Plan) -> Search[Outcome]:
        copies, builds = fused.copies is not None, fused.problem.builds
        check = StabilityCheck(
            problem=fused.problem, copies=copies, rebuilds=builds, drawn=FIRST_DRAW
        )
        reason = "norms whole, on copies"
        return (yield from check.judge(plan, reason, last=True, phase=Phase.SPEED))

    def _by_estimate(
        self, fused: Prepared, rivals: Rivals, floor: float
    ) -> Search[Deployable | None]:
        return fastest(
            fused.problem,
            rivals,
            copies=fused.copies is not None,
            objective=fused.case.options.objective,
            case=self.case,
            floor=floor,
        )

    def _on_engine(
        self, fused: Prepared, driver: Driver, rivals: Rivals, samples: SampleSet, floor: float
    ) -> Search[Deployable | None]:
        draw = 0 if fused.copies is None else FIRST_DRAW + 1
        trial = Proposal(plan=rivals.answer, samples=samples, draw=draw, case=self.case)
        contest = Contest(
            rivals=rivals,
            limit=fused.problem.tolerance or math.inf,
            trial=as_deployed(fused, trial),
            multiplying=products(fused.case.model),
            spent_s=spent_s(driver.every_trial, self.case),
            floor=floor,
        )
        return fastest_on_engine(contest, fused.case.options.objective)


def is_better(fused: PlanToDeploy, of_file: PlanToDeploy, objective: Objective) -> bool:
    """Whether a plan of the fused form is as safe, and faster, or as fast with fewer layers.

    For the smallest, bytes of weights stand for time.
    """
    own, other = (_time(plan, objective) for plan in (fused, of_file))
    if fused.latency and of_file.latency and objective != "smallest":
        own, other = fused.latency.median_ms, of_file.latency.median_ms
    faster, no_slower = own < (1 - AS_FAST) * other, own <= (1 + AS_FAST) * other
    if not as_safe(fused.unseen_share, of_file.unseen_share):
        return False
    return faster or (no_slower and len(fused.kept) < len(of_file.kept))


def _time(plan: PlanToDeploy, objective: Objective) -> float:
    """Return what a plan takes, as a share of the file's FP32 without TF32, or in bytes."""
    if objective == "smallest":
        return plan.weight_bytes
    return plan.tf32_time if plan.tf32 and plan.tf32_time is not None else plan.time


class Step(NamedTuple):
    """A plan that holds on the samples as given, with its error there."""

    plan: Plan
    error: float


def dropped(plan: Plan, errors: Sequence[float]) -> Search[list[Step]]:
    """Drop what a plan holds without: the least sensitive first, in halving parts.

    The samples as given decide. Each plan that holds is returned, the fewest layers last.
    """
    untried = sorted(plan.indices, key=lambda layer: errors[layer])
    # Halves, as in group testing: most layers here need not be kept.
    size = (len(untried) + 1) // 2
    steps: list[Step] = []
    for _ in range(DROPPED):
        if not untried:
            break
        part = untried[:size]
        fewer = plan.without(part)
        outcome = yield from one(fewer, Phase.SPEED, "norms whole, fewer layers high")
        if outcome.passed:
            plan, untried = fewer, untried[size:]
            steps.append(Step(plan, figure_of(outcome)))
        elif size > 1:
            size //= 2
        else:
            untried = untried[1:]
    return steps


def fewest_on_copies(
    steps: Sequence[Step], most: float, judge: Callable[[Plan], Search[Outcome]]
) -> Search[tuple[tuple[Plan, Outcome] | None, frozenset[Plan]]]:
    """Return one of some steps with `most` error at most that holds on copies, too, or None.

    The last is judged, then one half-way, then the first, as the last one has the fewest layers.
    Copies go further than the samples, and noise hides which step goes too far. Beside it stand
    the plans that have failed there.
    """
    failed: frozenset[Plan] = frozenset()
    within = [step.plan for step in steps if step.error <= most]
    for plan in dict.fromkeys((*within[-1:], *within[len(within) // 2 :][:1], *within[:1])):
        outcome = yield from judge(plan)
        if outcome.passed:
            return (plan, outcome), failed
        failed |= {plan}
    return None, failed
