"""From what the ledger holds to the result: certificate, diagnosis, exports, figures.

Everything is computed from the trials, so a run that was cut short is concluded the same way.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.graphs.typed.pinning import pinned_layers
from precision_bisect.judging.comparators.comparison_remarks import decided_remark, dropped_remark
from precision_bisect.judging.comparators.polygraphy_plugin import tolerance_of
from precision_bisect.machine.stopping import until
from precision_bisect.pipeline.chart import Charted, caused, charted, culprits_of, retraced
from precision_bisect.pipeline.choosing import promised
from precision_bisect.pipeline.deploying import (
    Written,
    costing,
    deployed_session,
    deploying,
    judge_of,
)
from precision_bisect.pipeline.elsewhere import Elsewhere, judged_elsewhere
from precision_bisect.pipeline.explanation import (
    Answer,
    Explained,
    allowance,
    explained_in_time,
)
from precision_bisect.pipeline.exported import exported_plan, within_limits, without_other_engine
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
    errors_by_output,
    forecast_notes,
    is_cut_short,
    judged_answer,
    kept_names,
    rungs,
    timings,
    without_verdict,
)
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.risk import estimated, selecting
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.results.advised import Advised
from precision_bisect.runs.results.deployment import Deployment
from precision_bisect.runs.results.endings import BUILDS_DIFFER, Ending, Status
from precision_bisect.runs.results.file_types import Fp32Search, InterfaceCost
from precision_bisect.runs.results.layer_costs import Costs
from precision_bisect.runs.results.low_share import LowShare
from precision_bisect.runs.results.other_targets import InnerSum
from precision_bisect.runs.results.result import Inputs, Pinned, Result
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.runs.results.unseen import Unseen
from precision_bisect.runs.runfolder import DIAGNOSIS, RESULT, RunFolder
from precision_bisect.runs.saved_options import told_options
from precision_bisect.search.budget import Budget
from precision_bisect.search.certificate.monotone import remarks, rows
from precision_bisect.search.driver import Driver
from precision_bisect.search.speed.running_low import running_low
from precision_bisect.settings.export_points import DEPLOY, FEWEST
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Phase


class _Ended(NamedTuple):
    """A run whose search is over, with what its trials say of the answer."""

    prepared: Prepared
    driver: Driver
    ending: Ending
    budget: Budget
    folder: RunFolder
    answer: JudgedAnswer


@dataclass(slots=True, kw_only=True)
class _Explanation:
    """What is found out of an answer after the search, and what became of its exports.

    What other targets, TF32, ranges and sums come to is of the `leaving` plan.
    """

    findings: Findings
    written: Written
    leaving: Plan | None = None
    promises_of: Literal["fewest", "deploy"] = FEWEST
    chart: Charted = field(default_factory=Charted)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    born: Plan = field(default_factory=lambda: Plan.of(()))
    sums: Sequence[InnerSum] = ()
    hidden: Sequence[str] = ()
    costs: Costs | None = None
    fp32_form: Fp32Search | None = None
    missing: list[str] = field(default_factory=list)


def conclude(
    prepared: Prepared,
    driver: Driver,
    ending: Ending,
    budget: Budget,
    folder: RunFolder,
    *,
    part: bool = False,
) -> Search[Result]:
    """Return the result of a run with this ending, and write the run folder's files.

    What is judged beside the answer explains it, and tells what it comes to elsewhere.

    If it is a `part` of a larger run, nothing is written and nothing explained.
    """
    case = prepared.case
    answer = judged_answer(prepared, driver, ending)
    run = _Ended(prepared, driver, ending, budget, folder, answer)
    options = deployed_session(case.options.engine, answer.final.opening)
    explanation = _Explanation(
        findings=Findings(low=case.options.low),
        written=Written(reason="", deployment=Deployment.by(options)),
    )
    if part:
        return _result(run, explanation, None)
    yield from _explain(run, explanation)
    plan, deployed = explanation.leaving or answer.plan, explanation.promises_of == DEPLOY
    result = _result(run, explanation, _unseen(run, plan, deployed=deployed))
    folder.write(DIAGNOSIS, explanation.findings.to_text())
    folder.write(RESULT, result.to_text())
    return result


def _explain(run: _Ended, explanation: _Explanation) -> Search[None]:
    """Explain the answer while a fresh process checks its files, and complete them."""
    prepared, ending, plan, budget = run.prepared, run.ending, run.answer.plan, run.budget
    curve = retraced(prepared, run.driver, ending)
    explanation.chart = charted(prepared, run.driver, curve, ending, plan)
    explanation.fp32_form = fp32_search(prepared, late=budget.late)
    chart = explanation.chart
    exported, explanation.missing = exported_plan(prepared, ending, run.answer, chart)
    explanation.leaving = answer = plan if ending.status.answers else None
    engine, opening, deploy = prepared.case.options.engine, run.answer.final.opening, ending.deploy
    if deploy is not None and exported is not None and exported.point == DEPLOY:
        explanation.leaving, explanation.promises_of = deploy.plan, DEPLOY
        opening = deploy.outcome.evidence.opening or opening
        engine = replace(engine, tf32="on") if deploy.case == TF32 else engine
    leaving = explanation.leaving
    opened_so = prepared.with_case(
        replace(prepared.case, options=replace(prepared.case.options, engine=engine))
    )
    judge = judge_of(prepared, prepared.case.comparator, deployed_session(engine, opening))
    explanation.missing += without_other_engine(prepared, run.driver, ending, run.folder, exported)
    passed = within_limits(prepared, run.driver, ending, run.answer, exported)
    explained = Explained(explanation.findings)
    check = ending.status is not Status.INTERRUPTED
    latencies = run.answer.timed.medians or {}
    with (
        deploying(opened_so, exported, run.folder, judge, check=check, passed=passed) as completed,
        costing(prepared, answer, latencies, run.budget) as costs,
    ):
        if _explainable(run):
            subject = Answer(
                kept=run.answer.kept,
                proof=run.answer.proof,
                trials=run.driver.trials,
                error=run.answer.error,
                culprits=culprits_of(prepared, curve),
                found=plan is not None,
                allowance=allowance(prepared, run.driver.trials, run.budget),
            )
            explaining = explained_in_time(prepared, run.driver, subject, budget)
            explained = yield from run.driver.to_end(explaining)
            explanation.findings = explained.findings
        explanation.findings = explanation.findings.of_answer(
            run.answer.kept, answered=plan is not None
        )
        with until(budget.overdue):
            if leaving is not None:
                judged = judged_elsewhere(prepared, run.driver.cases, leaving, run.answer.samples)
                explanation.elsewhere = yield from run.driver.to_end(judged)
                prepared.rest()
                explanation.born = born_inside(prepared, leaving, late=budget.late)
                explanation.sums = sums_inside(prepared, leaving, late=budget.late)
                explanation.hidden = hidden_rows(prepared)
            explanation.chart = caused(
                prepared, explanation.chart, explained, ending, late=budget.late
            )
        # The files are checked by now, mostly: what is timed has the device to itself.
        explanation.costs = costs()
        explanation.written = completed(explanation.findings.kept)


def _explainable(run: _Ended) -> bool:
    """Whether the answer can be explained, or why there is none."""
    match run.ending.status:
        case Status.FOUND | Status.STOPPED:
            return run.answer.plan is not None
        case status:
            return status is Status.INFEASIBLE


def _result(run: _Ended, explanation: _Explanation, unseen: Unseen | None) -> Result:
    """Return the result: each field says where it comes from."""
    prepared, driver, ending, answer = run.prepared, run.driver, run.ending, run.answer
    case = prepared.case
    options, backend, table = case.options, prepared.backend, case.model.table
    judged = [trial for trial in driver.every_trial if not trial.proposal.forecast]
    explaining = sum(t.proposal.phase is Phase.EXPLANATION for t in driver.every_trial)
    # Without an emulator beside it the backend has forecast, too.
    alone = prepared.emulator is None
    builds = len(driver.every_trial) - explaining if alone else len(judged)
    builds = 0 if backend.emulated else builds
    timed, speed = answer.timed, timings(prepared, driver, answer.samples)
    first = None if ending.found is None else kept_names(prepared, ending.found)
    interface = interface_cost(prepared, driver)
    return Result(
        status=ending.status,
        backend=backend.name,
        emulated=backend.emulated,
        target=options.target if backend.emulated else None,
        low=options.low,
        high=options.high,
        tolerance=tolerance_of(case.comparator),
        error=answer.error,
        error_max=answer.error_max,
        noise_floor=answer.noise_floor,
        stability=answer.stability,
        promises_of=explanation.promises_of,
        other_targets=explanation.elsewhere.targets,
        tf32=explanation.elsewhere.tf32,
        output_errors=errors_by_output(driver, answer.plan, answer.samples),
        unseen=unseen,
        layers_total=len(table.layers),
        candidates=len(table.candidates),
        fp32_form=explanation.fp32_form,
        interface=interface,
        kept=answer.kept,
        near_miss=answer.near_miss,
        low_share=_low_share(prepared, answer.plan),
        modules=_modules(run),
        by_modules=ending.by_modules,
        deploy=_deploy(run),
        asked=asked_layers(table),
        rungs=rungs(prepared, answer),
        export_point=explanation.written.point,
        layer_precisions=explanation.written.string,
        layer_precisions_reason=explanation.written.reason,
        no_command=explanation.written.no_command,
        certificate=answer.proof,
        culprits=explanation.chart.culprits,
        curve=explanation.chart.curve,
        non_monotone=rows(answer.broken, table.names),
        trials=len(judged),
        unresolved=without_verdict(judged),
        builds=builds,
        evaluations=len(driver.every_trial) - builds,
        wall_s=round(run.budget.wall_s(), 3),
        latency_ms=timed.medians,
        latency_spread_ms=timed.spread_ms,
        latency_method=timed.method,
        costs=explanation.costs,
        speed=speed.report(options.speed, timed.own, first),
        front=speed.front(table.names),
        honoured=run.answer.final.honoured,
        honoured_layers=run.answer.final.honours,
        pinned=[
            Pinned(layer=layer, reason=reason)
            for layer, reason in pinned_layers(case.model, case.pair.low_form).items()
        ],
        unknown_to=prepared.unknown_to,
        notes=_notes(run, explanation),
        deployment=explanation.written.deployment,
        diagnosis=explanation.findings.kept,
        advice=_advised(explanation.findings, answer),
        inputs=Inputs(
            synthetic=options.inputs is None,
            samples=len(case.sets.feeds),
            distinct=len({*case.sets.new.near}),
        ),
        input_ranges=explanation.elsewhere.ranges,
        inner_sums=explanation.sums,
        hidden_rows=explanation.hidden,
        fingerprint=prepared.fingerprint,
        options=told_options(prepared.loaded.request),
        message=_message(run, explanation.findings, interface),
        out=run.folder.path,
    )


def _deploy(run: _Ended) -> PlanToDeploy | None:
    """Return the plan to deploy, with what runs low in it; None where there is none."""
    deploy = run.ending.deploy
    if deploy is None:
        return None
    return replace(deploy.record, low_share=_low_share(run.prepared, deploy.plan))


def _low_share(prepared: Prepared, plan: Plan | None) -> LowShare | None:
    """Return what runs low in an answer, None without one, and where the file does not tell."""
    if plan is None:
        return None
    case = prepared.case
    with suppress(Exception):  # whatever a file holds, the answer stands
        return running_low(case.model, case.pair, plan, case.shapes)
    return None


def _modules(run: _Ended) -> Mapping[str, str]:
    """Return the modules of the kept layers by PyTorch's names; none where the model has none."""
    model = run.prepared.case.model
    modules = {layer.name: layer.module for layer in model.table.candidates}
    return {name: modules[name] for name in run.answer.kept} if model.pytorch else {}


def _notes(run: _Ended, explanation: _Explanation) -> list[str]:
    trials = run.driver.trials
    leaving = explanation.leaving or run.answer.plan
    comparator = run.prepared.case.comparator
    verdict_remarks = (dropped_remark(trials), decided_remark(comparator, trials))
    return [
        # First what a verdict may rest on.
        *unfelt(run.prepared, leaving, explanation.chart.curve, explanation.born),
        *sums_remarks(explanation.sums),
        *hidden_remarks(explanation.hidden, run.prepared.case.model),
        *run.prepared.loaded.remarks,
        *filter(None, verdict_remarks),
        *run.answer.final.notes,
        *forecast_notes(run.driver),
        *remarks(run.answer.broken),
        *explanation.missing,
        *explanation.written.notes,
    ]


def _advised(findings: Findings, answer: JudgedAnswer) -> list[Advised]:
    return [
        Advised(
            id=advice.id,
            title=advice.title,
            evidence=advice.evidence,
            passed=advice.holds,
            layers=[name for name in advice.layers if name in answer.kept],
            tried=advice.tried,
        )
        for advice in findings.advice
    ]


def _unseen(run: _Ended, plan: Plan | None, *, deployed: bool) -> Unseen | None:
    """Return the promise of the plan, `deployed` or the answer, with an estimate if asked for."""
    deploy, case = run.ending.deploy, run.prepared.case
    if plan is None:
        return None
    name = deploy.case if deploy is not None and deployed else ""
    trials = [trial for trial in run.driver.every_trial if trial.proposal.case == name]
    risk, limit = case.options.risk, case.comparator.tolerance
    calibrated = bool(case.scales.activations)
    unseen = promised(trials, plan, case.sets, calibrated=calibrated)
    if unseen is None or risk is None:
        return unseen
    estimate = replace(estimated(trials, plan, limit, risk), selecting=selecting(case.model))
    return replace(unseen, estimate=estimate)


def _message(run: _Ended, findings: Findings, cost: InterfaceCost | None) -> str:
    """Say what the ending has to say, and in which phase a run without an answer was cut short."""
    ending = run.ending
    if ending.status is Status.NOTHING_TO_KEEP and run.prepared.case.model.table.asked:
        return "every layer that no flag settles can run low within the tolerance"
    if not (is_cut_short(ending, run.answer.plan) and ending.status in CUT_OFF):
        parts = [ending.spread, ending.message]
        choices = [selection.words for selection in findings.selections]
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
