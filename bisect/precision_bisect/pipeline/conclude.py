"""From what the ledger holds to the result: certificate, diagnosis, exports, figures.

Everything is computed from the trials, so a run that was cut short is concluded the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.graphs.typed.pinning import pinned_layers
from precision_bisect.judging.comparators.comparison_remarks import decided_remark, dropped_remark
from precision_bisect.judging.comparators.polygraphy_plugin import tolerance_of
from precision_bisect.machine.stopping import until
from precision_bisect.pipeline.chart import caused, charted, culprits_of, retraced
from precision_bisect.pipeline.choosing import promised
from precision_bisect.pipeline.deploying import (
    Written,
    costing,
    deployed_session,
    deploying,
    exported_plan,
    judge_of,
    within_limits,
    without_other_engine,
)
from precision_bisect.pipeline.elsewhere import deployed_as, judged_elsewhere
from precision_bisect.pipeline.explanation import Answer, Explained, allowance, explained_in_time
from precision_bisect.pipeline.fused_case import FusedCase
from precision_bisect.pipeline.half_floats import fp32_search, interface_cost
from precision_bisect.pipeline.inside_layers import (
    born_inside,
    hidden_remarks,
    hidden_rows,
    sums_inside,
    sums_remarks,
    unfelt,
)
from precision_bisect.pipeline.judged_answer import (
    CUT_OFF,
    JudgedAnswer,
    asked_layers,
    deploy_as_written,
    forecast_notes,
    is_cut_short,
    judged_answer,
    kept_names,
    loop_steps,
    low_share,
    timings,
    without_verdict,
)
from precision_bisect.pipeline.made_files import deployed_with
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import estimated, selecting
from precision_bisect.pipeline.whole_course import held_as_exported
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.results.curve_of_result import CurveSection
from precision_bisect.runs.results.deployment import Deployment
from precision_bisect.runs.results.endings import BUILDS_DIFFER, Ending, Status
from precision_bisect.runs.results.file_types import Fp32Search, InterfaceCost
from precision_bisect.runs.results.layer_costs import Costs
from precision_bisect.runs.results.other_targets import ElsewhereSection, InnerSection
from precision_bisect.runs.results.result import (
    EffortSection,
    Inputs,
    Pinned,
    Result,
    SubjectSection,
    recorded,
)
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.runs.results.unseen import Unseen
from precision_bisect.runs.runfolder import DIAGNOSIS, RESULT, RunFolder
from precision_bisect.runs.saved_options import told_options
from precision_bisect.search.budget import Budget
from precision_bisect.search.certificate.monotone import remarks
from precision_bisect.search.driver import Driver
from precision_bisect.settings.export_points import DEPLOY, FEWEST
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName, Phase


@dataclass(slots=True, kw_only=True)
class _Ended:
    """A run whose search is over: what its trials say of the answer, and what is found out after.

    That is its explanation, and what became of its exports. What other targets, TF32, ranges and
    sums come to is of the `leaving` plan, `deployed` as it was judged in a `case`.
    """

    prepared: Prepared
    driver: Driver
    ending: Ending
    budget: Budget
    folder: RunFolder
    answer: JudgedAnswer
    findings: Findings
    written: Written
    deployed: Prepared
    fused: FusedCase | None
    leaving: Plan | None
    case: CaseName = ""
    promises_of: Literal["fewest", "deploy"] = FEWEST
    chart: CurveSection = field(default_factory=CurveSection)
    elsewhere: ElsewhereSection = field(default_factory=ElsewhereSection)
    born: Plan = field(default_factory=lambda: Plan.of(()))
    inner: InnerSection = field(default_factory=InnerSection)
    costs: Costs | None = None
    fp32_form: Fp32Search | None = None
    missing: list[str] = field(default_factory=list)


def conclude(
    prepared: Prepared,
    driver: Driver,
    ending: Ending,
    budget: Budget,
    folder: RunFolder,
    fused: FusedCase | None,
) -> Search[Result]:
    """Return the result of a run with this ending, and write the run folder's files.

    What is judged beside it explains the answer, and tells what it comes to elsewhere. Of a part
    of a larger run, which has no `fused` form, nothing is written and nothing explained.
    """
    case = prepared.case
    answer = judged_answer(prepared, driver, ending)
    options = deployed_session(case.options.engine, answer.final.opening)
    run = _Ended(
        prepared=prepared,
        driver=driver,
        ending=ending,
        budget=budget,
        folder=folder,
        answer=answer,
        findings=Findings(low=case.options.low),
        written=Written(layer_precisions_reason="", deployment=Deployment.by(options)),
        deployed=prepared,
        fused=fused,
        leaving=answer.plan,
    )
    # A rung of a ladder, whose whole is told once it is climbed.
    if fused is None:
        return _result(run, None)
    yield from _explain(run)
    result = _result(run, _unseen(run))
    folder.write(DIAGNOSIS, run.findings.to_text())
    folder.write(RESULT, result.to_text())
    return result


def _explain(run: _Ended) -> Search[None]:
    """Explain the answer while a fresh process checks its files, and complete them."""
    prepared, ending, plan, budget = run.prepared, run.ending, run.answer.plan, run.budget
    curve = retraced(prepared, run.driver, ending)
    run.chart = charted(prepared, run.driver, curve, ending, plan)
    run.fp32_form = fp32_search(prepared, late=budget.late)
    exported, run.missing = exported_plan(prepared, ending, run.answer, run.chart)
    answer = plan if ending.status.answers else None
    opening, deploy, in_files = run.answer.final.opening, ending.deploy, prepared
    as_deployed = deployed_with(prepared, run.fused, deploy, run.folder)
    held, exported_as = None, None
    if deploy is not None and exported is not None and exported.point == DEPLOY:
        run.leaving, run.promises_of = deploy.plan, DEPLOY
        in_files, held, exported_as = as_deployed, deploy.outcome, (deploy.plan, deploy.case)
    elif exported is not None:
        own = prepared.case.model.table.plan_of(exported.kept)
        if ending.status.answers and not run.driver.interrupted:
            with until(budget.overdue), run.driver.standing():
                trial = held_as_exported(prepared, run.driver, ending, own, run.answer.samples)
                held = yield from run.driver.to_end(trial)
        in_files = deployed_as(prepared, own, held_in_tf32=held is not None)
        exported_as = own, "" if held is None else TF32
    opening = (held and held.evidence.opening) or opening
    run.deployed = in_files
    if exported_as is not None and run.leaving == exported_as[0]:
        run.case = exported_as[1]
    elif answer is not None:
        held, run.deployed = None, deployed_as(prepared, answer)
    leaving, deployed, engine = run.leaving, run.deployed, in_files.case.options.engine
    judge = judge_of(prepared, prepared.case.comparator, deployed_session(engine, opening))
    run.missing += without_other_engine(run.driver, run.folder, exported_as)
    passed = within_limits(prepared, run.driver, ending, run.answer, exported)
    explained = Explained(run.findings)
    check = not run.driver.interrupted
    latencies = run.answer.timed.latency_ms or {}
    with (
        deploying(in_files, exported, run.folder, judge, check=check, passed=passed) as files,
        costing(prepared, answer, latencies, run.budget) as costs,
    ):
        if _explainable(run):
            subject = Answer(
                record=run.answer,
                trials=run.driver.trials,
                culprits=culprits_of(prepared, curve),
                found=plan is not None,
                fused=None if run.fused is None else run.fused.holding,
                allowance=allowance(prepared, run.driver.trials, run.budget),
            )
            with run.driver.standing():
                explaining = explained_in_time(prepared, run.driver, subject, budget)
                explained = yield from run.driver.to_end(explaining)
        run.findings = explained.findings.of_answer(run.answer.kept, answered=plan is not None)
        with until(budget.overdue), run.driver.standing():
            if ending.status.answers and leaving is not None and not run.driver.interrupted:
                judged = judged_elsewhere(
                    prepared, run.driver, leaving, run.answer.samples, deployed, held
                )
                run.elsewhere = yield from run.driver.to_end(judged)
                deployed.rest()
                run.born = born_inside(deployed, leaving, late=budget.late)
                run.inner = InnerSection(
                    inner_sums=sums_inside(deployed, leaving, late=budget.late),
                    hidden_rows=hidden_rows(deployed),
                )
            seek = not run.driver.interrupted
            run.chart = caused(prepared, run.chart, explained, seek=seek, late=budget.late)
        recheck = None
        if not run.driver.interrupted:
            with run.driver.standing():
                # The files are checked by now, mostly: what is timed has the device to itself.
                run.costs = costs()
                with until(budget.closing):
                    recheck = files.checked()
        run.written = files.completed(run.findings.kept, recheck)


def _explainable(run: _Ended) -> bool:
    """Whether to explain the answer, or why there is none: after an interrupt nobody waits."""
    match run.ending.status:
        case _ if run.driver.interrupted:
            return False
        case Status.FOUND | Status.STOPPED:
            return run.answer.plan is not None
        case status:
            return status is Status.INFEASIBLE


def _result(run: _Ended, unseen: Unseen | None) -> Result:
    """Return the record: the sections as their owners have written them, and what is in none."""
    prepared, driver, ending, answer = run.prepared, run.driver, run.ending, run.answer
    options, names = prepared.case.options, prepared.case.model.table.names
    speed = timings(prepared, driver, answer.samples)
    first = None if ending.found is None else kept_names(prepared, ending.found)
    interface = interface_cost(prepared, driver)
    found_out = (run.chart, run.elsewhere, run.inner, run.written)
    sections = (_subject(run), answer, answer.timed, *found_out, _effort(run))
    return Result(
        **recorded(*sections),
        promises_of=run.promises_of,
        unseen=unseen,
        fp32_form=run.fp32_form,
        interface=interface,
        low_share=low_share(prepared, answer.plan),
        loop=loop_steps(prepared, driver, answer.plan),
        modules=_modules(run),
        by_modules=ending.by_modules,
        deploy=_deploy(run),
        fused=None if run.fused is None else run.fused.record(driver, answer.samples),
        costs=run.costs,
        speed=speed.report(options.speed, answer.timed.own, first),
        front=speed.front(names),
        notes=_notes(run),
        diagnosis=run.findings.kept,
        advice=[advice.advised(run.answer.kept) for advice in run.findings.advice],
        message=_message(run, interface),
        out=run.folder.path,
    )


def _subject(run: _Ended) -> SubjectSection:
    """Return what was searched, for what, by what, and how that ended."""
    prepared, status = run.prepared, run.ending.status
    case, backend = prepared.case, prepared.backend
    options, table = case.options, case.model.table
    return SubjectSection(
        status=status,
        cut_short=run.driver.interrupted and status is not Status.INTERRUPTED,
        backend=backend.name,
        emulated=backend.emulated,
        target=options.target if backend.emulated else None,
        low=options.low,
        high=options.high,
        tolerance=tolerance_of(case.comparator),
        layers_total=len(table.layers),
        candidates=len(table.candidates),
        asked=asked_layers(table),
        pinned=[
            Pinned(layer=layer, reason=reason)
            for layer, reason in pinned_layers(case.model, case.pair.low_form).items()
        ],
        unknown_to=prepared.unknown_to,
        inputs=Inputs(
            synthetic=options.inputs is None,
            samples=len(case.sets.feeds),
            distinct=len({*case.sets.new.near}),
        ),
        overlooked=prepared.loaded.overlooked,
        fingerprint=prepared.fingerprint,
        options=told_options(prepared.loaded.request),
    )


def _effort(run: _Ended) -> EffortSection:
    every = run.driver.every_trial
    judged = [trial for trial in every if not trial.proposal.forecast]
    explaining = sum(trial.proposal.phase is Phase.EXPLANATION for trial in every)
    # Without an emulator beside it the backend has forecast, too.
    alone = run.prepared.emulator is None
    builds = len(every) - explaining if alone else len(judged)
    builds = 0 if run.prepared.backend.emulated else builds
    return EffortSection(
        trials=len(judged),
        unresolved=without_verdict(judged),
        unresolved_why={
            trial.outcome.status.value: trial.outcome.message
            for trial in judged
            if trial.outcome.verdict is None
        },
        builds=builds,
        evaluations=len(every) - builds,
        wall_s=round(run.budget.wall_s(), 3),
    )


def _deploy(run: _Ended) -> PlanToDeploy | None:
    """Return the plan to deploy, with what its file holds; None where there is none."""
    if (deploy := run.ending.deploy) is None or (fewest := run.answer.plan) is None:
        return None
    form = run.fused.prepared if run.fused is not None and deploy.record.fused else None
    return deploy_as_written(run.prepared, form, deploy, fewest)


def _modules(run: _Ended) -> Mapping[str, str]:
    """Return the modules of the kept layers by PyTorch's names; none where the model has none."""
    model = run.prepared.case.model
    modules = {str(layer.name): layer.module for layer in model.table.candidates}
    return {name: modules[name] for name in run.answer.kept} if model.pytorch else {}


def _notes(run: _Ended) -> list[str]:
    trials = run.driver.trials
    decided = decided_remark(run.prepared.case.comparator, trials)
    return [
        # First what should judge, then what a verdict may rest on: screens have the first two.
        *run.prepared.loaded.remarks,
        *unfelt(run.deployed, run.leaving, run.chart.curve, run.born, run.budget.overdue),
        *sums_remarks(run.inner.inner_sums),
        *hidden_remarks(run.inner.hidden_rows, run.deployed.case.model),
        *filter(None, (dropped_remark(trials), decided)),
        *run.prepared.remarks,
        *run.answer.final.notes,
        *forecast_notes(run.driver),
        *remarks(run.answer.broken),
        *run.missing,
        *run.written.notes,
    ]


def _unseen(run: _Ended) -> Unseen | None:
    """Return the promise of the plan that leaves, with an estimate if asked for."""
    case, plan = run.prepared.case, run.leaving
    if plan is None:
        return None
    trials = [trial for trial in run.driver.every_trial if trial.proposal.case == run.case]
    risk, limit = case.options.risk, case.comparator.tolerance
    calibrated = bool(case.scales.activations)
    unseen = promised(trials, plan, case.sets, calibrated=calibrated)
    if unseen is None or risk is None:
        return unseen
    estimate = replace(estimated(trials, plan, limit, risk), selecting=selecting(case.model))
    return replace(unseen, estimate=estimate)


def _message(run: _Ended, cost: InterfaceCost | None) -> str:
    """Say what the ending has to say, and in which phase a run without an answer was cut short."""
    ending = run.ending
    if ending.status is Status.NOTHING_TO_KEEP and run.prepared.case.model.table.asked:
        return "every layer that no flag settles can run low within the tolerance"
    if not (is_cut_short(ending, run.answer.plan) and ending.status in CUT_OFF):
        parts = [ending.spread, ending.message]
        choices = [selection.words for selection in run.findings.selections]
        if ending.status is Status.INFEASIBLE and choices:
            parts = [*choices, ending.message]
        elif ending.spread:
            parts += choices
        elif ending.unsteady:
            parts.append(BUILDS_DIFFER)
        elif ending.status is Status.NOT_PRECISION and cost is not None:
            parts = [cost.words]
        return "; ".join(part for part in parts if part)
    what = "the budget ended" if ending.status is Status.BUDGET_EXHAUSTED else ending.status.value
    why = f" ({ending.message})" if ending.message else ""
    low = run.prepared.case.options.low.upper()
    return (
        f"{what} during the {run.driver.phase}{why}; "
        f"no plan has passed yet that runs a layer in {low}"
    )
