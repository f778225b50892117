"""From what the ledger holds to the curve and the culprits of `result.json`.

The curve is a search like any other: feeding it from the ledger draws it again, without a trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_bisect.errors import counted
from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.choosing import on_samples
from precision_bisect.pipeline.explanation import Explained, explain_layers
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.stability import one
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import Pace
from precision_bisect.protocols import Search
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.curve_of_result import Culprit, CurvePoint, CurveSection
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.runs.results.unseen import OverSamples
from precision_bisect.search.curve_points import complete
from precision_bisect.search.driver import Driver
from precision_bisect.search.precision_curve import Curve, CurveTrial, judge_all_low, sweep
from precision_bisect.search.rounding_law import typical, worst
from precision_bisect.search.sample_sets import searched
from precision_bisect.trial import JUDGED_KINDS, Kind, Latency, Outcome, Phase, SampleSet


def chart(prepared: Prepared, driver: Driver, curve: Curve, ending: Ending) -> Search[None]:
    """Return the search that draws the curve of a run with this ending, as far as it went."""
    return on_samples(searched(driver.trials), _drawn(prepared, driver, curve, ending))


def _drawn(prepared: Prepared, driver: Driver, curve: Curve, ending: Ending) -> Search[None]:
    plan = ending.plan if ending.status is Status.FOUND else None
    if plan is not None and prepared.problem.large and not _ranked(driver):
        # What leaves the range is the answer (see `settled`): each layer of it is a culprit.
        curve.culprits = plan
        ends = {end: driver.outcome_of(end, ending.samples) for end in (Plan.of(()), plan)}
        curve.tried |= {end: outcome for end, outcome in ends.items() if outcome is not None}
        yield from judge_all_low(curve)
    else:
        yield from sweep(curve)
    for former in ending.passed_over:
        outcome = outcome_of_answer(driver, former, ending.samples)
        yield from complete(curve, former, outcome)
        if outcome is not None:
            curve.tried[former] = outcome
    if plan is not None:
        yield from complete(curve, plan, outcome_of_answer(driver, plan, ending.samples))
        # Without other options the ends and the answer are timed as they were built.
        problem = prepared.problem
        if problem.builds and not (problem.as_deployed or problem.timed):
            yield from _timed(driver, curve, plan)
    elif prepared.case.options.until == "curve" and curve.passing is not None:
        yield from complete(curve, curve.passing, curve.tried[curve.passing])


def _timed(driver: Driver, curve: Curve, answer: Plan) -> Search[None]:
    """Time points of the curve as deployed, which the search did not build so.

    Only what was not timed yet is built again. Every layer low comes first. Where that is faster
    than every layer high, by more than their spread, the named points follow. Where the answer is
    not, so do points below it, by bisection, to tell up to how many layers the low type pays.
    """
    everything = Plan.all_high(curve.problem.size)
    high, own = (latency_of(driver, plan) for plan in (everything, answer))
    if high is None:
        return
    # The build that found it to hold may have judged alone.
    if own is None:
        own = (yield from _time(answer)).evidence.latency
    if own is None:
        return

    def pays(latency: Latency | None) -> bool:
        pace = paced(high, latency)
        return pace is not None and pace[0] + pace[1] < high.median_ms

    def pay(plan: Plan) -> Search[bool]:
        latency = latency_of(driver, plan)
        return pays(latency if latency else (yield from _time(plan)).evidence.latency)

    if not (yield from pay(Plan.of(()))):
        return
    for plan in (curve.culprits, curve.margin):
        if plan is not None and plan != answer:
            yield from pay(plan)
    below = [plan for plan, *_ in curve.points(answer, None) if 0 < len(plan) < len(answer)]
    start, end = 0, 0 if pays(own) else len(below)
    while start < end:
        middle = (start + end) // 2
        if (yield from pay(below[middle])):
            start = middle + 1
        else:
            end = middle


def _time(plan: Plan) -> Search[Outcome]:
    reason = f"{counted(len(plan), 'layer')}: how fast, as deployed"
    return (yield from one(plan, Phase.SPEED, reason, kind=Kind.AGAIN, timed=True))


def outcome_of_answer(driver: Driver, plan: Plan, samples: SampleSet) -> Outcome | None:
    """Return the outcome of an answer, on copies where there are any."""
    return driver.on_copies(plan) or driver.judged(plan, samples)


def retraced(prepared: Prepared, driver: Driver, ending: Ending) -> Curve:
    """Return the curve of a run, as far as the ledger holds it."""
    curve = prepared.curve
    if ending.status is Status.NOTHING_TO_KEEP:
        return curve  # nothing breaks the low type, whatever was ranked for a safer plan
    # A run that ended in its preflight has none, and drawing one begins with inferences.
    if _ranked(driver) or (prepared.problem.large and ending.status is Status.FOUND):
        driver.retrace(chart(prepared, driver, curve, ending))
    return curve


def _ranked(driver: Driver) -> bool:
    return any(trial.proposal.phase is Phase.RANKING for trial in driver.trials)


def culprits_of(prepared: Prepared, curve: Curve) -> Sequence[str]:
    """Return the names of the culprits in network order; [] if there are none."""
    names = prepared.case.model.table.names
    return [] if curve.culprits is None else [str(names[i]) for i in curve.culprits.indices]


def charted(
    prepared: Prepared, driver: Driver, curve: Curve, ending: Ending, plan: Plan | None
) -> CurveSection:
    """Return what a result says of the curve and the culprits, whose causes are still to find.

    `plan` is the answer, or the best so far.
    """
    if curve.culprits is None:
        return CurveSection()
    # A run that ends with the curve has no answer to mark in it.
    answer = None if ending.status is Status.STOPPED else plan
    outcome = None if answer is None else outcome_of_answer(driver, answer, ending.samples)
    names = prepared.case.model.table.names
    together = curve.tried[curve.culprits]
    return CurveSection(
        curve=[_point(driver, point, names, ending) for point in curve.points(answer, outcome)],
        culprits=[
            Culprit(
                layer=name,
                error_without=_without(driver, curve, i, searched(driver.trials)),
                error_with=typical(together),
                cause=Cause.UNKNOWN,
            )
            for i, name in zip(curve.culprits.indices, culprits_of(prepared, curve), strict=True)
        ],
    )


def caused(
    prepared: Prepared, drawn: CurveSection, explained: Explained, *, seek: bool, late: bool
) -> CurveSection:
    """Return the curve with the causes of its culprits.

    Those that are not told are looked for if they are to `seek`; if it is `late` they are read off
    values alone.
    """
    findings = {
        finding.layer: finding for finding in (*explained.findings.layers, *explained.culprits)
    }
    missing = [culprit.layer for culprit in drawn.culprits if culprit.layer not in findings]
    if missing and seek:
        findings |= {
            finding.layer: finding for finding in explain_layers(prepared, missing, late=late)
        }
    return replace(
        drawn,
        culprits=[
            replace(culprit, cause=finding.cause, evidence=str(finding.evidence.signs[0]))
            if (finding := findings.get(culprit.layer))
            else culprit
            for culprit in drawn.culprits
        ],
    )


def _without(driver: Driver, curve: Curve, layer: int, samples: SampleSet) -> float | None:
    """Return the error of the culprits' plan without one of them: a trial's, else a forecast's."""
    assert curve.culprits is not None
    judged = outcome_of_answer(driver, curve.culprits.without((layer,)), samples)
    return curve.without.get(layer) if judged is None else typical(judged)


def _point(
    driver: Driver, point: CurveTrial, names: Sequence[LayerName], answered: Ending
) -> CurvePoint:
    plan, outcome, name = point
    high = latency_of(driver, Plan.all_high(len(names)))
    latency = paced(high, latency_of(driver, plan))
    answer_outcome = None if point.name != "answer" else driver.judged(plan, answered.samples)
    return CurvePoint(
        kept_count=len(plan),
        error_median=typical(outcome),
        error_max=largest_error(
            driver, plan, outcome, None if answer_outcome is None else answer_outcome.error
        ),
        latency_ms=None if latency is None else round(latency[0], 6),
        point=name,
        kept=[str(names[i]) for i in plan.indices],
        over_samples=OverSamples.of(_by_sample(driver, plan).values()),
    )


def largest_error(
    driver: Driver, plan: Plan, outcome: Outcome | None, error: float | None = None
) -> float | None:
    """Return the largest of an outcome's errors, on copies too, of each sample's, and of `error`.

    One figure, wherever the error of a plan is told.
    """
    errors = [error, *_by_sample(driver, plan).values()]
    errors += [] if outcome is None else [outcome.error, worst(outcome)]
    return max((value for value in errors if value is not None), default=None)


def _by_sample(driver: Driver, plan: Plan) -> Mapping[int, float]:
    """Return the error of a plan on each sample that has judged it, of several the largest."""
    errors_by_sample: dict[int, float] = {}
    for trial in driver.trials:
        one_by_one = trial.outcome.evidence.one_by_one
        if (
            one_by_one is None
            or trial.proposal.plan != plan
            or trial.proposal.kind not in JUDGED_KINDS
        ):
            continue
        for number, error in zip(one_by_one.numbers, one_by_one.errors, strict=True):
            if error is not None:
                errors_by_sample[number] = max(error, errors_by_sample.get(number, 0.0))
    return errors_by_sample


def latency_of(driver: Driver, plan: Plan) -> Latency | None:
    """Return the latency of the last build of a plan that was timed, as it is deployed."""
    timed = (
        trial.outcome.evidence.latency
        for trial in reversed(driver.trials)
        if trial.proposal.plan == plan and trial.outcome.evidence.latency
    )
    return next(timed, None)


def paced(high: Latency | None, own: Latency | None) -> tuple[float, float] | None:
    """Return a latency and its spread in milliseconds, on the clock of every layer high.

    Clocks drift, so what was timed in turns with every layer high counts by its ratio to that.
    """
    if own is None:
        return None
    pace = None if high is None else Pace.of(own, high.median_ms)
    if high is None or pace is None:
        return own.median_ms, own.spread_ms
    return pace.latency_ms(high.median_ms), pace.spread_ms(high.median_ms)
