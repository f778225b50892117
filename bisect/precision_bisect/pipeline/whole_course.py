"""One generator over a run: the search, then what completes its answer."""

from collections.abc import Sequence
from dataclasses import replace

from precision_bisect.backends.emulation.emulator_plugin import opens_late
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.machine.stopping import STOPS
from precision_bisect.options import DEFAULT_STRATEGY
from precision_bisect.pipeline.best_known import Standing, best_known
from precision_bisect.pipeline.chart import chart, latency_of, outcome_of_answer, retraced
from precision_bisect.pipeline.choosing import (
    error_of_others,
    judged_by_held_out,
    judged_by_others,
    on_samples,
)
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.pipeline.elsewhere import error_of_fp32, fp32_as_deployed, has_tf32, in_tf32
from precision_bisect.pipeline.fastest import Rivals, fastest, seeks_fastest
from precision_bisect.pipeline.fastest_on_engine import (
    answer_to_deploy,
    deployable_on_engine,
    held_in_tf32,
    with_tf32_first,
)
from precision_bisect.pipeline.fused_case import FusedCase
from precision_bisect.pipeline.inside_layers import reference_trouble
from precision_bisect.pipeline.plan_estimates import estimates_of
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import (
    ROOM,
    Spread,
    judged_by_pool,
    law_of_unsafe,
    selecting,
    unseen_share,
)
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.pipeline.whole_modules import by_modules
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.runs.results.endings import Deployable, Ending, Status
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.search.budget import BudgetSpent
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.combinators import answered, mapped
from precision_bisect.search.driver import CrashLoop, Driver
from precision_bisect.search.precision_curve import Curve
from precision_bisect.search.rounding_law import Law
from precision_bisect.search.sensitivity import LARGE
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName, Outcome, Phase, SampleSet


def whole_course(prepared: Prepared, driver: Driver, fused: FusedCase | None) -> Search[Ending]:
    """Search, and complete what is told of an answer; with no `fused` form of a part of a run."""
    with in_tf32(prepared, driver.cases):
        if fused is None:
            return (yield from searched_in(prepared, part=True))
        with fused.beside(driver):
            ending = yield from searched_in(prepared, part=False, fused=fused)
            ending = yield from _charted(prepared, driver, ending)
            ending = yield from _by_modules(prepared, driver, ending)
            # The answer stands, as in `_charted`: estimates alone take minutes of large models.
            with driver.standing():
                ending = yield from _with_fastest(prepared, driver, ending, fused)
        if ending.deploy is not None and selecting(prepared.case.model):
            # How errors spread has chosen it, the safer way; it tells no share all the same.
            return replace(ending, deploy=ending.deploy.without_share())
        return ending


def _charted(prepared: Prepared, driver: Driver, ending: Ending) -> Search[Ending]:
    """Complete the curve; return the ending, with a better plan of the curve if there is one."""
    options = prepared.case.options
    is_answer = ending.status is Status.FOUND and options.until == "answer"
    if not is_answer and (ending.status is not Status.STOPPED or options.until != "curve"):
        return ending
    # The answer stands: whatever ends this early costs only points of the curve.
    with driver.standing():
        while True:
            curve = prepared.curve
            yield from chart(prepared, driver, curve, ending)
            # Another strategy is asked for by its name: its plan is the answer. So is one that was
            # widened for unseen inputs, and one of whole modules.
            named = prepared.loaded.strategy.name != DEFAULT_STRATEGY
            if not is_answer or named or options.risk is not None or options.by == "module":
                break
            better = yield from _better(prepared, driver, curve, ending)
            if better is None:
                break
            ending = better
    return ending


def _by_modules(prepared: Prepared, driver: Driver, ending: Ending) -> Search[Ending]:
    """Return the ending with its answer as whole modules of PyTorch, if they hold."""
    by_module = prepared.case.options.by == "module"
    if ending.status is not Status.FOUND or not (by_module or prepared.case.model.pytorch):
        return ending
    problem = prepared.problem
    holding = StabilityCheck(problem=problem, copies=prepared.copies is not None)
    # The answer stands, as in `_charted`.
    with driver.standing():
        assert ending.plan is not None
        judged = by_modules(ending.plan, prepared.modules, holding, every=by_module)
        modules = yield from on_samples(ending.samples, judged)
        if modules is None:
            return ending
        plan = prepared.modules.whole(modules.names)
        if (yield from _passes_others(prepared, plan, ending)):
            others = error_of_others(driver.trials, plan)
            error = None if modules.error is None else max(modules.error, others)
            return replace(ending, by_modules=replace(modules, error=error))
    return ending


def _with_fastest(
    prepared: Prepared, driver: Driver, ending: Ending, fused: FusedCase
) -> Search[Ending]:
    """Return the ending with the plan to deploy, where one is looked for beside the answer."""
    answer, samples = ending.plan, ending.samples
    if not ending.status.answers or answer is None or not _seeks_fastest(prepared, driver):
        return ending
    outcome = outcome_of_answer(driver, answer, samples)
    curve = retraced(prepared, driver, ending)
    if outcome is None:
        return ending
    limit, law = prepared.problem.tolerance, curve.law
    lowest = ending.status is Status.NOTHING_TO_KEEP
    unsafe = lowest and prepared.loaded.runs and not as_safe(unseen_share(outcome, limit), None)
    # Every layer low stands beside FP32, which may be as fast, and no other plan. Of 8 bits
    # nothing is estimated.
    timed = prepared.case.options.low in LOW_TYPES or not prepared.backend.emulated
    alone = lowest and not unsafe and timed
    if not alone and (curve.problem.large or not (law or unsafe)):
        return ending
    rivals = Rivals(
        names=prepared.case.model.table.names,
        limit=limit,
        law=law or Law([], []),
        answer=answer,
        outcome=outcome,
        starts=[] if curve.margin is None else [curve.margin],
        estimates=estimates_of(prepared),
        # What a plan to deploy has failed at before is not known to a run that is not resumed.
        refuted=driver.refuted_before(Phase.SPEED),
    )
    if alone or not prepared.backend.emulated:
        # Whatever ends this early, the result has the answer's time beside that of FP32.
        ending = replace(ending, deploy=answer_to_deploy(prepared, driver, rivals, samples))
    # The answer stands, as in `_charted`.
    with driver.standing():
        if prepared.backend.emulated and not alone:
            # What computes TF32 takes as much memory again.
            prepared.rest()
            # Where no plan of the file can be as fast as the fused form, none is judged.
            ahead = yield from _with_form(prepared, driver, ending, rivals, fused)
            if ahead.deploy is not None:
                return ahead
        if unsafe:
            law = yield from law_of_unsafe(prepared.problem, outcome)
            rivals = replace(rivals, law=law)
        if alone:
            deployable = ending.deploy
        elif prepared.backend.emulated:
            deployable = yield from _by_estimate(prepared, rivals, samples)
        else:
            deployable = yield from deployable_on_engine(prepared, driver, rivals, samples)
        if deployable is not None:
            candidates = yield from with_tf32_first(prepared, driver, rivals, deployable, samples)
            deployable = yield from _first_that_holds(prepared, ending, candidates)
            deployable = deployable or answer_to_deploy(prepared, driver, rivals, samples)
        ending = replace(ending, deploy=deployable)
        if not alone:
            ending = yield from _with_form(prepared, driver, ending, rivals, fused)
    return ending


def _with_form(
    prepared: Prepared, driver: Driver, ending: Ending, rivals: Rivals, fused: FusedCase
) -> Search[Ending]:
    """Return the ending with a plan of the fused form to deploy; the same where none is better."""
    candidates = yield from fused.fastest(driver, ending, rivals)
    form = fused.prepared or prepared
    better = yield from _first_that_holds(form, ending, candidates)
    if better is None:
        return ending
    fused.best = better.plan, better.outcome
    return replace(ending, deploy=better)


def _first_that_holds(
    prepared: Prepared, ending: Ending, candidates: Sequence[Deployable]
) -> Search[Deployable | None]:
    """Return the first plan that holds by samples that chose nothing; None where none does.

    Samples that are held out decide nothing.
    """
    for candidate in candidates:
        plan, case = candidate.plan, candidate.case
        if (plan, case) == (ending.plan, ""):
            return candidate
        if (yield from _in_case(case, _holds_by_others(prepared, plan, ending))):
            return candidate
    return None


def _holds_by_others(prepared: Prepared, plan: Plan, ending: Ending) -> Search[bool]:
    """Judge a plan of another case by all samples that a promise is made of.

    Those that are held out decide nothing. The spread has to suggest the risk that was asked for,
    where it says anything.
    """
    problem, options = prepared.problem, prepared.case.options
    if not (yield from _passes_others(prepared, plan, ending)):
        return False
    if options.holdout:
        yield from judged_by_held_out(plan, builds=problem.builds)
    limit, risk = problem.tolerance, options.risk
    if risk is None or limit is None or selecting(prepared.case.model):
        return True
    copies = prepared.copies is not None
    holding = StabilityCheck(problem=problem, copies=copies, rebuilds=problem.builds)
    pool = yield from judged_by_pool(plan, holding)
    spread = Spread.of(pool.evidence.one_by_one, limit)
    return pool.passed and (spread is None or spread.error(risk) <= limit)


def held_as_exported(
    prepared: Prepared, driver: Driver, ending: Ending, plan: Plan, samples: SampleSet
) -> Search[Outcome | None]:
    """Return what a plan came to with TF32 if it leaves so: one that no contest has judged.

    An engine that has judged it is kept with the files.
    """
    without = outcome_of_answer(driver, plan, samples)
    phase = Phase.EXPLANATION if prepared.backend.emulated else Phase.RECHECK
    with in_tf32(prepared, driver.cases):
        outcome = yield from held_in_tf32(prepared, driver, plan, samples, without, phase)
        if outcome is not None and (
            yield from _in_case(TF32, _holds_by_others(prepared, plan, ending))
        ):
            return outcome
    return None


def _by_estimate(
    prepared: Prepared, rivals: Rivals, samples: SampleSet
) -> Search[Deployable | None]:
    """Return the plan to deploy that estimates choose: in TF32 where FP32 has room so.

    Without it where no plan holds so.
    """
    options, limit = prepared.case.options, prepared.problem.tolerance
    floor = yield from error_of_fp32(prepared, samples)
    cases: dict[CaseName, float] = {"": 0.0}
    if limit is not None and floor <= ROOM * limit:
        cases = {TF32: floor, **cases}
    # With TF32 first: it is what libraries do unless told, and faster where it holds.
    for case, error in cases.items():
        search = fastest(
            prepared.problem,
            rivals,
            copies=prepared.copies is not None,
            objective=options.objective,
            case=case,
            floor=error,
        )
        deployable = yield from _in_case(case, on_samples(samples, search))
        if deployable is not None:
            return deployable
    return None


def _in_case(case: CaseName, search: Search[T]) -> Search[T]:
    return mapped(search, ask=lambda proposal: replace(proposal, case=case))


def _seeks_fastest(prepared: Prepared, driver: Driver) -> bool:
    """Whether a fast plan is looked for: of engines, by those on this machine with a clock."""
    if prepared.backend.emulated or not seeks_fastest(prepared):
        return seeks_fastest(prepared)
    here = not prepared.case.options.elsewhere
    return here and latency_of(driver, prepared.everything) is not None


def _passes_others(prepared: Prepared, plan: Plan, ending: Ending) -> Search[bool]:
    """Judge a plan by all other samples than those that an answer was searched with, if any."""
    if not prepared.case.sets.others:
        return True
    problem = prepared.problem
    holding = StabilityCheck(problem=problem, rebuilds=problem.builds)
    judged = yield from judged_by_others(plan, holding, ending.samples, widen=False)
    return judged.outcome.passed


def _better(
    prepared: Prepared, driver: Driver, curve: Curve, ending: Ending
) -> Search[Ending | None]:
    """Judge plans of the curve that are better than the answer; None where none holds."""
    assert ending.plan is not None
    outcome = outcome_of_answer(driver, ending.plan, ending.samples)
    if outcome is None:
        return None
    problem, options = prepared.problem, prepared.case.options
    trials = JudgedTrials(
        tolerance=problem.tolerance,
        size=problem.size,
        samples=ending.samples,
        allowed=options.copies_failing,
    )
    standing = Standing(
        ending=ending,
        outcome=outcome,
        refuted=driver.refuted,
        copies=prepared.copies is not None,
        certify=prepared.certify,
        seen=trials.having(driver.trials),
    )
    better = yield from on_samples(ending.samples, best_known(problem, curve, standing))
    if better is None or better.plan is None:
        return None
    # Plans of the curve have seen the chosen samples alone.
    if not (yield from _passes_others(prepared, better.plan, ending)):
        return None
    if options.holdout:
        yield from judged_by_held_out(better.plan, builds=problem.builds)
    return better


def searched_in(
    prepared: Prepared, *, part: bool, case: CaseName = "", fused: FusedCase | None = None
) -> Search[Ending]:
    """Search in a case, and return how that ends, whatever ends it.

    The `fused` form is judged in the preflight, too.
    """
    if trouble := reference_trouble(prepared.case):
        return Ending(
            status=Status.NOT_PRECISION,
            message=f"the FP32 reference itself is not finite: {trouble}",
        )
    try:
        unlike = part or prepared.case.options.elsewhere or prepared.case.sets.others
        if not unlike and not _ranked_long(prepared) and has_tf32(prepared):
            # What FP32 comes to where it is deployed is known before anything is searched.
            yield (fp32_as_deployed(prepared),)
        search = _in_case(case, _course(prepared, part=part))
        return (yield from (search if fused is None else answered(search, fused.answered)))
    except BudgetSpent as spent:
        return Ending(status=Status.BUDGET_EXHAUSTED, message=str(spent))
    except CrashLoop as loop:
        return Ending(status=Status.ABORTED, message=str(loop))
    except STOPS as stopped:
        return Ending(status=Status.BUDGET_EXHAUSTED, message=stopped.message)
    except KeyboardInterrupt:
        return Ending(status=Status.INTERRUPTED)


def _ranked_long(prepared: Prepared) -> bool:
    """Tell whether an answer takes long, so that FP32 in TF32 is judged once there is one.

    In the largest models what judges that has the memory to itself, before anything else.
    """
    model, size = prepared.case.model, prepared.problem.size
    return prepared.backend.emulated and size > LARGE and not opens_late(model)


def _course(prepared: Prepared, *, part: bool) -> Search[Ending]:
    """Return the search of a run, which may be `part` of a larger one."""
    options, by_module = prepared.case.options, prepared.case.options.by == "module"
    course = Course(
        certify=prepared.certify,
        pool=prepared.case.sets.pool if prepared.case.sets.others else (),
        others=prepared.case.sets.others > 0,
        held_out=options.holdout > 0,
        risk=None if selecting(prepared.case.model) else options.risk,
        copies=prepared.copies is not None,
        copies_failing=options.copies_failing,
        # Only the default strategy begins at the curve's plan; one rung of a ladder has no curve
        # to show.
        curve=not (part or by_module or prepared.loaded.strategy.name != DEFAULT_STRATEGY),
        modules=prepared.modules if by_module else None,
        until=options.until,
    )
    return flow(prepared.problem, prepared.loaded.strategy, course)
