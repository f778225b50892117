"""From what the ledger holds to the result: certificate, diagnosis, exports, figures.

Everything is computed from the trials, so a run that was cut short is concluded the same way.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from precision_bisect.certificate.judged_trials import JudgedTrials
from precision_bisect.certificate.monotone import breaks, remarks, rows
from precision_bisect.certificate.proving import Terms, certificate
from precision_bisect.comparators.comparison_remarks import decided_remark
from precision_bisect.diagnosis.findings import Findings
from precision_bisect.errors import UsageError
from precision_bisect.layer_table import LayerName, assigned
from precision_bisect.options import ANSWER
from precision_bisect.pipeline.answer_builds import (
    final_build,
    forecast_notes,
    latencies,
    output_errors,
    unresolved,
)
from precision_bisect.pipeline.chart import (
    Charted,
    caused,
    charted,
    culprits_of,
    retraced,
)
from precision_bisect.pipeline.choosing import error_of_others, promised
from precision_bisect.pipeline.costing import costs_of
from precision_bisect.pipeline.deploying import (
    Written,
    deploying,
    judge_of,
    session_options,
)
from precision_bisect.pipeline.elsewhere import other_targets
from precision_bisect.pipeline.explanation import Answer, Explained, explained
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.range_ends import input_ranges
from precision_bisect.pipeline.risk import estimated, selecting
from precision_bisect.pipeline.stability import clear_limit
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Comparator
from precision_bisect.results.advised import Advised
from precision_bisect.results.certificates import Uncertified
from precision_bisect.results.chosen_point import Held, held
from precision_bisect.results.deployment import Deployment
from precision_bisect.results.endings import WITHOUT_ANSWER, Ending, Status
from precision_bisect.results.input_ranges import InputRange
from precision_bisect.results.other_targets import OnTargets
from precision_bisect.results.result import Diagnosis, Inputs, Pinned, Result, Rung
from precision_bisect.results.unseen import Unseen
from precision_bisect.run_folder.runfolder import (
    DIAGNOSIS,
    RESULT,
    RunFolder,
)
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.limits_and_noise import noise_between
from precision_bisect.search.sample_sets import searched
from precision_bisect.speed.report import Timings
from precision_bisect.speed.report import rows as front_rows
from precision_bisect.trial import (
    Kind,
    SampleSet,
    Stability,
)
from precision_bisect.typed.pinning import pinned_layers

ADVICE, LEAST_ADVICE_S = 0.1, 5.0
"""Share of the run's time so far, and seconds, that trying advice may take: the larger of both.
Bounds; the answer is there, and `explain` tries what is left out."""
_NO_ANSWER = (*WITHOUT_ANSWER, Status.STOPPED)
_CUT_OFF = {
    Status.BUDGET_EXHAUSTED: "the budget was spent",
    Status.INTERRUPTED: "interrupted",
    Status.ABORTED: "aborted",
}


def conclude(
    prepared: Prepared,
    driver: Driver,
    ending: Ending,
    budget: Budget,
    folder: RunFolder,
    *,
    part: bool = False,
) -> Result:
    """Return the result of a run with this ending, and write the run folder's files.

    If it is a `part` of a larger run, nothing is written and nothing explained.
    """
    plan, samples = _answer(prepared, driver, ending)
    kept = _names(prepared, plan) if plan is not None else []
    everything = Plan.all_high(len(prepared.model.table.candidates))
    judged = everything if plan is None else plan
    drawn = driver.on_copies(judged)
    outcome = driver.outcome_of(judged, samples) or drawn
    stability = None if drawn is None else drawn.evidence.stability
    began = searched(driver.trials)
    noise = driver.outcome_of(everything, began, Kind.REPEAT)
    # The larger of both: an answer near the tolerance varies by its copies where builds repeat
    # exactly.
    between = noise_between(driver.outcome_of(everything, began), noise)
    floor = max(between, _noise_of(stability))
    names, limit = prepared.model.table.names, prepared.comparator.tolerance
    alone = JudgedTrials(tolerance=limit, size=len(names), samples=began)
    alone.having(each for each in driver.trials if not each.proposal.draw)
    broken = breaks(alone, floor)
    seen = JudgedTrials(
        tolerance=limit,
        size=len(names),
        samples=began,
        copies=drawn is not None,
        clear=clear_limit(limit, drawn),
        allowed=prepared.options.copies_failing,
    )
    proof = certificate(plan, seen.having(driver.trials), names, _terms(prepared, ending))
    final = final_build(driver, plan, samples)
    timings = _timings(prepared, driver, samples)
    first = None if ending.found is None else _names(prepared, ending.found)
    counted = [trial for trial in driver.trials if trial.proposal.kind is not Kind.PREDICT]
    curve = prepared.curve if part else retraced(prepared, driver, ending)
    # "All high" passed, but it is no answer: its error would be read as one.
    cut_short = plan is None and ending.status in (*_CUT_OFF, Status.STOPPED)
    error = outcome.error if outcome and not cut_short else None
    if plan is not None and error is not None:
        error = max(error, error_of_others(driver.trials, plan))
    drawn_up = Charted() if part else charted(prepared, driver, curve, ending, plan)
    told = Explained(Findings(low=prepared.options.low))
    others: Sequence[OnTargets] = ()
    ranges: Sequence[InputRange] = ()
    timed = latencies(driver, everything, plan)
    costs = None
    options = session_options(prepared.options.engine, final.opening)
    written = Written(reason="", deployment=Deployment.by(options))
    diagnosis: Sequence[Diagnosis] = ()
    missing: Sequence[str] = ()
    if not part:
        exported, missing = _exported(prepared, drawn_up, None if plan is None else kept)
        judge = judge_of(prepared, prepared.comparator, options)
        check = ending.status is not Status.INTERRUPTED
        with deploying(prepared, exported, folder, judge, check=check) as completed:
            if plan is not None and ending.status in (Status.FOUND, Status.STOPPED):
                answer = Answer(
                    kept=kept,
                    proof=proof,
                    trials=driver.trials,
                    error=error,
                    culprits=culprits_of(prepared, curve),
                    late=budget.late,
                    advice_s=max(LEAST_ADVICE_S, ADVICE * budget.elapsed_s()),
                )
                told = explained(prepared, answer)
            if plan is not None and ending.status.answers:
                others = other_targets(prepared, plan, samples, late=budget.late)
                ranges = input_ranges(prepared, plan, late=budget.late)
            drawn_up = caused(prepared, drawn_up, told, ending, late=budget.late)
            diagnosis = [each.short for each in told.findings.layers if each.kept]
            if plan is not None and ending.status.answers:
                # The files are checked by now, mostly: what is timed has the device to itself.
                costs = costs_of(prepared, plan, timed.medians or {}, budget)
            written = completed(diagnosis)
    findings = told.findings
    # Without an emulator beside it the backend is the only one that was asked.
    builds = len(driver.trials if prepared.emulator is None else counted)
    if prepared.backend.emulated:
        builds = 0
    result = Result(
        status=ending.status,
        backend=prepared.backend.name,
        emulated=prepared.backend.emulated,
        target=prepared.options.target if prepared.backend.emulated else None,
        low=prepared.options.low,
        high=prepared.options.high,
        tolerance=tolerance_of(prepared.comparator),
        error=error,
        noise_floor=floor if noise else None,
        stability=stability,
        other_targets=others,
        output_errors=output_errors(driver, plan, samples),
        unseen=None if plan is None or part else _unseen(prepared, driver, plan),
        layers_total=len(prepared.model.table.layers),
        candidates=len(prepared.model.table.candidates),
        kept=kept,
        rungs=[] if plan is None else _rungs(prepared, plan),
        export_point=written.point,
        layer_precisions=written.string,
        layer_precisions_reason=written.reason,
        certificate=proof,
        culprits=drawn_up.culprits,
        curve=drawn_up.curve,
        non_monotone=rows(broken, names),
        trials=len(counted),
        unresolved=unresolved(counted),
        builds=builds,
        evaluations=len(driver.trials) - builds,
        wall_s=round(budget.elapsed_s(), 3),
        latency_ms=timed.medians,
        latency_spread_ms=timed.spread_ms,
        latency_method=timed.method,
        costs=costs,
        speed=timings.report(prepared.options.speed, timed.own, first),
        front=front_rows(timings.front(), names),
        honoured=final.honoured,
        honoured_layers=final.honours,
        pinned=[
            Pinned(layer=layer, reason=reason)
            for layer, reason in pinned_layers(prepared.model).items()
        ],
        notes=[
            *prepared.remarks,
            *filter(None, [decided_remark(prepared.comparator, driver.trials)]),
            *final.notes,
            *forecast_notes(driver),
            *remarks(broken),
            *missing,
            *written.notes,
        ],
        deployment=written.deployment,
        diagnosis=diagnosis,
        advice=[
            Advised(
                id=each.id,
                title=each.title,
                evidence=each.evidence,
                passed=each.holds,
                layers=[name for name in each.layers if name in kept],
                tried=each.tried,
            )
            for each in findings.advice
        ],
        inputs=Inputs(synthetic=prepared.options.inputs is None, samples=len(prepared.sets.feeds)),
        input_ranges=ranges,
        fingerprint=prepared.fingerprint,
        message=_cut_short(prepared, driver, ending)
        if cut_short and ending.status in _CUT_OFF
        else "; ".join(part for part in (ending.spread, ending.message) if part),
        out=folder.path,
    )
    if not part:
        folder.write(DIAGNOSIS, findings.to_text())
        folder.write(RESULT, result.to_text())
    return result


def _exported(
    prepared: Prepared, charted: Charted, kept: Sequence[LayerName] | None
) -> tuple[Held | None, list[str]]:
    """Return the plan to export, with a remark if the point asked for does not exist.

    `kept` are the layers of the answer, None if there is none.
    """
    answer, point = None if kept is None else Held(kept=kept), prepared.options.export_point
    if point == ANSWER:
        return answer, []
    try:
        return held(point, charted.curve, charted.culprits), []
    except UsageError as error:
        return answer, [error.one_line()]


def _answer(prepared: Prepared, driver: Driver, ending: Ending) -> tuple[Plan | None, SampleSet]:
    """Return the plan that the ending stands by, else the best so far, and what judged it.

    The plan that keeps every layer is what there was before the search, so it is no best so far. A
    plan that does not hold on all copies is better than none.
    """
    if ending.plan is None and ending.status not in _NO_ANSWER:
        for best in filter(None, (driver.best(), driver.nearly(), driver.unsteady())):
            samples = best.proposal.samples
            faster = _timings(prepared, driver, samples).best_so_far(prepared.options.speed)
            given = prepared.options.speed.given and faster is not None
            plan = faster if given else best.proposal.plan
            if plan is not None and len(plan) < len(prepared.model.table.candidates):
                return plan, samples
    return ending.plan, ending.samples


def _unseen(prepared: Prepared, driver: Driver, plan: Plan) -> Unseen | None:
    """Return the promise of the answer, with the estimate that was asked for."""
    risk, limit = prepared.options.risk, prepared.comparator.tolerance
    calibrated = bool(prepared.scales.activations)
    found = promised(driver.trials, plan, prepared.sets, calibrated=calibrated)
    if found is None or risk is None:
        return found
    told = replace(
        estimated(driver.trials, plan, limit, risk), selecting=selecting(prepared.model)
    )
    return replace(found, estimate=told)


def _cut_short(prepared: Prepared, driver: Driver, ending: Ending) -> str:
    """Say in which phase a run without an answer was cut short, and why."""
    what = "the budget ended" if ending.status is Status.BUDGET_EXHAUSTED else ending.status.value
    why = f" ({ending.message})" if ending.message else ""
    low = prepared.options.low.upper()
    return (
        f"{what} during the {driver.phase}{why}; no plan has passed yet that runs a layer in {low}"
    )


def _timings(prepared: Prepared, driver: Driver, samples: SampleSet) -> Timings:
    """Return the timings of the run; estimates if the backend emulates."""
    return Timings(
        trials=driver.trials,
        samples=samples,
        candidates=len(prepared.model.table.candidates),
        graph=prepared.graph if prepared.backend.emulated else None,
    )


def _rungs(prepared: Prepared, plan: Plan) -> list[Rung]:
    """Return what computes in each type of the pair."""
    options = prepared.options
    pair = Pair(low=options.low, high=options.high)
    counts = Counter(assigned(prepared.model.table, pair, plan).values())
    kept = _names(prepared, plan)
    return [
        Rung(precision=options.high, layers=kept, count=counts[options.high]),
        Rung(precision=options.low, layers=None, count=counts[options.low]),
    ]


def _names(prepared: Prepared, plan: Plan) -> list[LayerName]:
    names = prepared.model.table.names
    return [names[i] for i in plan.indices]


def _noise_of(stability: Stability | None) -> float:
    """Return the spread of the answer's error over copies, on the tolerance's scale."""
    if stability is None or stability.jitter is None or stability.error_median is None:
        return 0.0
    # One standard deviation: sd(ln error) times the median, as for small spreads.
    return stability.jitter * stability.error_median


def _terms(prepared: Prepared, ending: Ending) -> Terms:
    """Return what the certificate may rest on."""
    untested, uncertified = "not tried", None
    if prepared.options.until == "culprits":
        uncertified = Uncertified.CULPRITS
    elif prepared.certify == "none":
        uncertified = Uncertified.ASKED
    elif ending.spread is not None:
        uncertified = Uncertified.SPREAD
    elif ending.status in _CUT_OFF:
        untested = _CUT_OFF[ending.status]
    elif ending.found is not None:
        untested = "not tried: changed for speed"
    elif not prepared.strategy.minimal:
        untested = f"strategy {prepared.strategy.name} does not certify"
    return Terms(
        mode=prepared.certify if uncertified is None else "none",
        untested=untested if uncertified is None else uncertified.value,
        uncertified=uncertified,
        limit=ending.limit,
        seed=prepared.options.seed,
    )


def tolerance_of(comparator: Comparator) -> float | Mapping[str, Any] | None:
    """Return the one limit if there is only one, else all as the comparator lists them."""
    settings = comparator.settings()
    limit = comparator.tolerance
    kinds = ("atol", "rtol", "classes")
    limits = {value for key in kinds for value in settings.get(key, {}).values()}
    if limit is None or "atol" not in settings or limits - {0.0} == {limit}:
        return limit
    return {key: settings[key] for key in kinds if key in settings}
