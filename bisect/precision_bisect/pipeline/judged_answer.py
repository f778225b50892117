"""What the trials of a run say of its answer: plan, error, noise, proof, and its builds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from precision_bisect.errors import ModelError
from precision_bisect.graphs.typed.as_written import casts_added, weight_bytes
from precision_bisect.graphs.typed.rewrite import TypedWriter, writer_of
from precision_bisect.judging.comparators.output_errors import together
from precision_bisect.layer_table import LayerName, LayerTable, assigned
from precision_bisect.pipeline.chart import largest_error, latency_of, paced
from precision_bisect.pipeline.choosing import error_of_others
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.stability import clear_limit
from precision_bisect.plan import Plan
from precision_bisect.runs.results.certificates import Uncertified
from precision_bisect.runs.results.endings import WITHOUT_ANSWER, Deployable, Ending, Status
from precision_bisect.runs.results.loop_steps import LoopSteps
from precision_bisect.runs.results.low_share import LowShare
from precision_bisect.runs.results.result import AnswerSection, Asked, Rung
from precision_bisect.runs.results.speed_report import LatencySection, PlanToDeploy
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.certificate.monotone import Break, breaks, rows
from precision_bisect.search.certificate.proving import Terms, certificate
from precision_bisect.search.driver import Driver
from precision_bisect.search.engine_runs import TOLD_BY_STEP
from precision_bisect.search.limits_and_noise import noise_between
from precision_bisect.search.sample_sets import searched
from precision_bisect.search.speed.front import Timings
from precision_bisect.search.speed.running_low import running_low
from precision_bisect.trial import (
    JUDGED_KINDS,
    Evidence,
    Figure,
    Kind,
    Latency,
    Outcome,
    OutputError,
    SampleSet,
    Stability,
    Trial,
    TrialStatus,
)


@dataclass(frozen=True, kw_only=True)
class Timed(LatencySection):
    """The latencies, with the answer's `own` as it was measured."""

    own: Latency | None = None


def final_build(driver: Driver, plan: Plan | None, samples: SampleSet) -> Evidence:
    """Return what the last build of the answer showed: a fresh build, if there was one."""
    builds = [
        trial
        for trial in _builds(driver, plan)
        if trial.proposal.samples == samples or trial.proposal.kind is Kind.REBUILD
        # What judges one by one looks at nothing else.
        if not trial.proposal.samples.singly
    ]
    return builds[-1].outcome.evidence if builds else Evidence()


def _builds(driver: Driver, plan: Plan | None) -> list[Trial]:
    """Return the trials that have built a plan and judged it, the freshest last."""
    trials = (trial for trial in driver.trials if trial.proposal.kind in JUDGED_KINDS)
    builds = [trial for trial in trials if trial.proposal.plan == plan]
    return sorted(builds, key=lambda trial: JUDGED_KINDS.index(trial.proposal.kind))


def _errors_by_output(
    driver: Driver, plan: Plan | None, samples: SampleSet
) -> Sequence[OutputError]:
    """Return those of the freshest builds of the answer on its samples, and on all others.

    Outputs that are empty in every sample are left out.
    """
    errors_by_samples = {
        trial.proposal.samples: trial.outcome.evidence.output_errors
        for trial in _builds(driver, plan)
        if trial.proposal.samples in (samples, samples.others)
        and trial.outcome.evidence.output_errors
    }
    errors = together(errors_by_samples.values()) if samples in errors_by_samples else ()
    return [error for error in errors if error.elements]


def low_share(prepared: Prepared, plan: Plan | None) -> LowShare | None:
    """Return what runs low in an answer, None without one, and where memory runs out."""
    case = prepared.case
    # The result is not lost for want of memory.
    with suppress(MemoryError):
        return None if plan is None else running_low(case.model, case.pair, plan, case.shapes)
    return None


def deploy_as_written(
    file: Prepared, fused: Prepared | None, deploy: Deployable, fewest: Plan
) -> PlanToDeploy:
    """Return the record of a plan to deploy, with what runs low and what its typed file holds.

    Beside that stand the weights of the `fewest` layers and of every layer high. The plan may be
    of a `fused` form, those are of the file. What cannot be written keeps its estimates.
    """
    form = fused or file
    record = replace(deploy.record, low_share=low_share(form, deploy.plan))
    # Graphs with stubs, which hold no weights. The result is not lost for want of memory.
    with suppress(ModelError, MemoryError):
        own = _writer(form)
        of_file = own if fused is None else _writer(file)
        typed = own.write(deploy.plan)
        return replace(
            record,
            casts=casts_added(typed),
            weight_bytes=weight_bytes(typed),
            answer_weight_bytes=weight_bytes(of_file.write(fewest)),
            high_weight_bytes=weight_bytes(of_file.write(file.everything)),
        )
    return record


def _writer(prepared: Prepared) -> TypedWriter:
    case = prepared.case
    return writer_of(case.model, case.pair, case.scales)


def loop_steps(prepared: Prepared, driver: Driver, plan: Plan | None) -> LoopSteps | None:
    """Return how the samples ran in a loop, None where each was one inference."""
    loop, options = prepared.case.loop, prepared.case.options
    if loop.plain:
        return None
    own = options.loop is not None
    return LoopSteps(
        steps=None if own else options.steps,
        feeds=options.feed,
        judged="function" if own else "each" if options.each_step else "last",
        errors=_by_step(driver, plan),
        all_low=_by_step(driver, Plan.of(())),
        samples=TOLD_BY_STEP if len(prepared.case.samples) > TOLD_BY_STEP else 0,
    )


def _by_step(driver: Driver, plan: Plan | None) -> Sequence[Figure]:
    builds = (trial for trial in _builds(driver, plan) if not trial.proposal.case)
    by_step = (trial.outcome.evidence.by_step for trial in builds)
    return next((errors for errors in reversed([*by_step]) if errors), ())


def latencies(driver: Driver, everything: Plan, answer: Plan | None) -> Timed:
    """Return how long every layer high, every layer low, and the answer take."""
    plans = {"all_high": everything, "all_low": Plan.of(()), "kept": answer}
    latency_by_plan = {
        name: None if plan is None else latency_of(driver, plan) for name, plan in plans.items()
    }
    high = latency_by_plan["all_high"]
    timed = [latency for latency in latency_by_plan.values() if latency]
    if not timed:
        return Timed()
    # Each build has its own turn with FP32: ratios of those are compared, not times of different
    # minutes.
    paces = {name: paced(high, latency) for name, latency in latency_by_plan.items()}
    own = paces["kept"]
    return Timed(
        latency_ms={name: pace and round(pace[0], 6) for name, pace in paces.items()},
        latency_spread_ms=own and round(own[1], 6),
        latency_method=timed[0].method,
        latency_batch=timed[0].batch,
        own=latency_by_plan["kept"],
    )


def forecast_notes(driver: Driver) -> list[str]:
    """Return the notes of forecasts: where they moved, and why."""
    forecasts = (t.outcome for t in driver.trials if t.proposal.kind is Kind.PREDICT)
    return [*dict.fromkeys(note for forecast in forecasts for note in forecast.evidence.notes)]


def without_verdict(trials: Sequence[Trial]) -> Mapping[str, int]:
    """Return how many trials had no verdict, by their status, in the order of the statuses."""
    counts = Counter(trial.outcome.status for trial in trials if trial.outcome.verdict is None)
    return {status.value: counts[status] for status in TrialStatus if counts[status]}


CUT_OFF = {
    Status.BUDGET_EXHAUSTED: "the budget was spent",
    Status.INTERRUPTED: "interrupted",
    Status.ABORTED: "aborted",
}
"""Endings before the search was over, in the words of a certificate."""
_NO_ANSWER = (*WITHOUT_ANSWER, Status.STOPPED)


@dataclass(frozen=True, kw_only=True)
class JudgedAnswer(AnswerSection):
    """The answer with its plan, and what has judged it.

    `broken` are plans that failed though they keep more than one that passed. `final` is what the
    last build showed.
    """

    plan: Plan | None
    samples: SampleSet
    broken: Sequence[Break]
    final: Evidence
    timed: Timed


def judged_answer(prepared: Prepared, driver: Driver, ending: Ending) -> JudgedAnswer:
    """Return the answer of a run with this ending, or its best plan so far."""
    case = prepared.case
    plan, samples, near_miss = _plan(prepared, driver, ending)
    everything = prepared.everything
    judged = everything if plan is None else plan
    on_copies = driver.on_copies(judged)
    stability = None if on_copies is None else on_copies.evidence.stability
    began = searched(driver.trials)
    repeated = driver.outcome_of(everything, began, Kind.REPEAT)
    # The larger of both: an answer near the tolerance varies by its copies where builds repeat
    # exactly.
    between = noise_between(driver.outcome_of(everything, began), repeated)
    floor = max(between, _noise_of(stability))
    names, limit = case.model.table.names, case.comparator.tolerance
    trials = JudgedTrials(
        tolerance=limit,
        size=len(names),
        samples=began,
        copies=on_copies is not None,
        clear=clear_limit(limit, on_copies),
        allowed=case.options.copies_failing,
    )
    error = _error(driver, plan, driver.judged(judged, samples) or on_copies, ending)
    kept, final = kept_names(prepared, plan), final_build(driver, plan, samples)
    broken = _broken(prepared, driver, floor)
    return JudgedAnswer(
        plan=plan,
        samples=samples,
        kept=kept,
        error=error,
        error_max=None if error is None else largest_error(driver, judged, on_copies, error),
        stability=stability,
        noise_floor=floor if repeated else None,
        output_errors=_errors_by_output(driver, plan, samples),
        rungs=_rungs(prepared, plan, kept),
        certificate=certificate(
            plan, trials.having(driver.trials), names, _terms(prepared, ending)
        ),
        non_monotone=rows(broken, names),
        honoured=final.honoured,
        honoured_layers=final.honours,
        broken=broken,
        final=final,
        timed=latencies(driver, everything, plan),
        near_miss=near_miss,
    )


def kept_names(prepared: Prepared, plan: Plan | None) -> list[LayerName]:
    """Return the names of the layers that a plan keeps; none without a plan."""
    names = prepared.case.model.table.names
    return [] if plan is None else [names[i] for i in plan.indices]


def is_cut_short(ending: Ending, plan: Plan | None) -> bool:
    """Tell whether a run ended before any plan had passed."""
    cut_off = ending.status.cut_off or ending.status is Status.STOPPED
    return plan is None and cut_off


def timings(prepared: Prepared, driver: Driver, samples: SampleSet) -> Timings:
    """Return the timings of the run; estimates if the backend emulates."""
    return Timings(
        trials=driver.trials,
        samples=samples,
        candidates=len(prepared.case.model.table.candidates),
        graph=prepared.graph if prepared.backend.emulated else None,
    )


def _plan(
    prepared: Prepared, driver: Driver, ending: Ending
) -> tuple[Plan | None, SampleSet, bool]:
    """Return the plan that the ending stands by, else the best so far, and what judged it.

    And whether that is a near miss, which is better than nothing. The plan that keeps every layer
    is what there was before the search, so it is no best so far.
    """
    case = prepared.case
    if ending.plan is None and ending.status not in _NO_ANSWER:
        choices = (driver.best(), False), (driver.nearly(), True), (driver.unsteady(), True)
        for best, near_miss in choices:
            if best is None:
                continue
            samples = best.proposal.samples
            faster = timings(prepared, driver, samples).best_so_far(case.options.speed)
            use_faster = case.options.speed.given and faster is not None
            plan = faster if use_faster else best.proposal.plan
            if plan is not None and len(plan) < len(case.model.table.candidates):
                return plan, samples, near_miss
    return ending.plan, ending.samples, False


def _error(
    driver: Driver, plan: Plan | None, outcome: Outcome | None, ending: Ending
) -> float | None:
    """Return the error of the answer on all samples that have judged it."""
    # "All high" passed, but it is no answer: its error would be read as one.
    if outcome is None or outcome.error is None or is_cut_short(ending, plan):
        return None
    return (
        outcome.error if plan is None else max(outcome.error, error_of_others(driver.trials, plan))
    )


def _broken(prepared: Prepared, driver: Driver, noise: float) -> Sequence[Break]:
    """Return where monotonicity was seen broken, on the samples alone."""
    trials = JudgedTrials(
        tolerance=prepared.case.comparator.tolerance,
        size=len(prepared.case.model.table.names),
        samples=searched(driver.trials),
    )
    trials.having(trial for trial in driver.trials if not trial.proposal.draw)
    return breaks(trials, noise)


def _noise_of(stability: Stability | None) -> float:
    """Return the spread of the answer's error over copies, on the tolerance's scale."""
    if stability is None or stability.jitter is None or stability.error_median is None:
        return 0.0
    # One standard deviation: sd(ln error) times the median, as for small spreads.
    return stability.jitter * stability.error_median


def _terms(prepared: Prepared, ending: Ending) -> Terms:
    """Return what the certificate may rest on."""
    case = prepared.case
    untested, uncertified = "not tried", None
    if case.options.until == "culprits":
        uncertified = Uncertified.CULPRITS
    elif case.options.by == "module":
        uncertified = Uncertified.MODULES
    elif prepared.certify == "none":
        uncertified = Uncertified.ASKED
    elif ending.spread is not None:
        uncertified = Uncertified.SPREAD
    elif ending.status in CUT_OFF:
        untested = CUT_OFF[ending.status]
    # Fewest layers were found, and others added for speed: none of those was meant to be needed.
    elif ending.found is not None:
        untested = "not tried: changed for speed"
    elif not prepared.loaded.strategy.minimal:
        untested = f"strategy {prepared.loaded.strategy.name} does not certify"
    return Terms(
        mode=prepared.certify if uncertified is None else "none",
        untested=untested if uncertified is None else uncertified.value,
        uncertified=uncertified,
        limit=ending.limit,
        seed=case.options.seed,
    )


def asked_layers(table: LayerTable) -> list[Asked]:
    """Return the layers whose type was asked for, in network order."""
    return [Asked(layer=name, precision=form.precision) for name, form in table.asked.items()]


def _rungs(prepared: Prepared, plan: Plan | None, kept: Sequence[LayerName]) -> list[Rung]:
    """Return what computes in each type of the pair; nothing without an answer."""
    case = prepared.case
    if plan is None:
        return []
    options = case.options
    counts = Counter(assigned(case.model.table, case.pair, plan).values())
    return [
        Rung(precision=options.high, layers=kept, count=counts[options.high]),
        Rung(precision=options.low, layers=None, count=counts[options.low]),
    ]
