"""The searches of a ladder, step by step, put together as one result with its reasons."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from precision_bisect.explaining.diagnosis.findings import Finding, Findings, Sign
from precision_bisect.judging.comparators.polygraphy_plugin import tolerance_of
from precision_bisect.layer_table import LayerName, assigned
from precision_bisect.machine.stopping import STOPS, until
from precision_bisect.pipeline.deploying import deployed_session, deploying, judge_of
from precision_bisect.pipeline.elsewhere import other_targets
from precision_bisect.pipeline.evaluators import reopened
from precision_bisect.pipeline.explanation import Answer, explained_in_time
from precision_bisect.pipeline.half_floats import fp32_search
from precision_bisect.pipeline.judged_answer import asked_layers
from precision_bisect.pipeline.ladder.composition import Composition, Floor
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Comparator
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.monitoring.events import Observer
from precision_bisect.runs.results.certificates import Certificate, Need, forecasts_of
from precision_bisect.runs.results.chosen_point import ExportedPoint
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Pinned, Result, Rung, recorded
from precision_bisect.runs.runfolder import DIAGNOSIS, RESULT, RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.trial import SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSearch:
    """One search of a ladder.

    `kept` are the candidates that stay in the upper type of the rung; without an answer that is
    all of them. `after` is the composition that the search left, `ledger` has its trials.
    `answered` is False as long as no plan of the ladder has passed.
    """

    rung: int
    prepared: Prepared
    result: Result
    kept: Sequence[LayerName]
    after: Composition
    ledger: Path
    answered: bool


@dataclass(slots=True, kw_only=True)
class Climbed:
    """What the searches of a ladder have found, in their order: the latest `composition`.

    `comparator` judges by the full tolerance. `floors` has the layers that have no form in the
    lowest type. `broken_off` tells how the run was between two searches, `cut_short` that it was
    while its answer was explained.
    """

    comparator: Comparator
    composition: Composition
    steps: list[RungSearch] = field(default_factory=list)
    floors: dict[LayerName, Floor] = field(default_factory=dict)
    broken_off: Status | None = None
    cut_short: bool = False

    @property
    def rungs(self) -> range:
        """The rungs, the lowest first."""
        return range(len(self.composition.ladder) - 1)

    @property
    def chosen(self) -> Mapping[int, Sequence[LayerName]]:
        """The layers that each level above the lowest holds by choice, in network order.

        A layer at its floor has no lower form, so it was not chosen.
        """
        return {
            level: [
                name
                for name in self.composition.at(level)
                if name not in self.floors or self.floors[name].level < level
            ]
            for level in range(1, len(self.composition.ladder))
        }

    @contextmanager
    def noting(self, driver: Driver | None = None) -> Iterator[None]:
        """Note an interrupt, also a driver's; it ends the block, as the end of the time does."""
        try:
            yield
        except (KeyboardInterrupt, *STOPS) as end:
            self.cut_short |= isinstance(end, KeyboardInterrupt)
        self.cut_short |= driver is not None and driver.interrupted

    def proof_of(self, rung: int) -> RungSearch | None:
        """Return the search that certified a rung in the final composition."""
        searches = (
            s for s in reversed(self.steps) if s.rung == rung and s.after == self.composition
        )
        return next(searches, None)


def conclude_ladder(
    climbed: Climbed, budget: Budget, folder: RunFolder, observer: Observer
) -> Result:
    """Return the result of a ladder's run, and write the run folder's files."""
    last = climbed.steps[-1]
    results = [step.result for step in climbed.steps]
    # In network order, which the composition has.
    chosen = frozenset(name for layers in climbed.chosen.values() for name in layers)
    kept = [name for name in climbed.composition.levels if last.answered and name in chosen]
    ladder = climbed.composition.ladder
    findings = Findings(low=ladder[0])
    part = last.result.deployment
    options = part or deployed_session(last.prepared.case.options.engine)
    judge = judge_of(last.prepared, climbed.comparator, options)
    point = ExportedPoint(kept=last.kept) if last.answered else None
    others, before = [], _effort(climbed)
    plan = last.prepared.case.model.table.plan_of(last.kept)
    whole = last.prepared.with_case(replace(last.prepared.case, comparator=climbed.comparator))
    check = not (climbed.broken_off is Status.INTERRUPTED or climbed.cut_short)
    with deploying(whole, point, folder, judge, check=check, passed=True) as files:
        if last.answered:
            findings = explain_ladder(climbed, budget, observer)
        check &= not climbed.cut_short
        if last.answered and last.result.status.answers and check:
            with (
                until(budget.overdue),
                reopened(last.prepared, last.ledger, budget, observer) as driver,
                climbed.noting(driver),
            ):
                search = other_targets(whole, driver.cases, plan, SampleSet.JUDGED)
                others = driver.run(driver.to_end(search))
        diagnosis = [
            finding.short for name, finding in nearest(findings).items() if name in chosen
        ]
        recheck = None
        if not climbed.cut_short:
            with until(budget.closing), climbed.noting():
                recheck = files.checked()
        written = files.completed(diagnosis, recheck)
    notes = [*(note for result in results for note in result.notes), *written.notes]
    result = replace(
        last.result,
        **recorded(written),
        status=_status(climbed, kept),
        cut_short=climbed.cut_short,
        other_targets=others,
        low=climbed.composition.pair(0).low,
        high=climbed.composition.pair(-1).high,
        tolerance=tolerance_of(climbed.comparator),
        candidates=len(climbed.steps[0].prepared.case.model.table.candidates),
        fp32_form=fp32_search(climbed.steps[0].prepared, late=budget.late),
        # Nothing was fixed below FP32 in the first search.
        interface=results[0].interface,
        kept=kept,
        low_share=None,
        asked=asked_layers(last.prepared.case.model.table),
        # The ends of a rung are no plans of the model: all but its candidates is fixed.
        latency_ms=_own(last.result.latency_ms),
        rungs=_rungs(climbed) if last.answered else [],
        certificate=_certificate(climbed, kept),
        trials=sum(result.trials for result in results),
        builds=sum(result.builds for result in results),
        evaluations=sum(result.evaluations for result in results) + _effort(climbed) - before,
        unresolved=dict(sum((Counter(result.unresolved) for result in results), Counter[str]())),
        unresolved_why={s: why for result in results for s, why in result.unresolved_why.items()},
        non_monotone=[row for result in results for row in result.non_monotone],
        wall_s=round(budget.wall_s(), 3),
        pinned=_pinned(climbed, kept),
        notes=list(dict.fromkeys(notes)),
        diagnosis=diagnosis,
        fingerprint={**last.result.fingerprint, "ladder": list(ladder)},
        message=_message(climbed),
        out=folder.path,
    )
    folder.write(DIAGNOSIS, findings.of_answer(kept, answered=last.answered).to_text())
    folder.write(RESULT, result.to_text())
    return result


def _pinned(climbed: Climbed, kept: Sequence[LayerName]) -> list[Pinned]:
    """Return why layers that are not kept do not have the lowest type, in network order."""
    floors = climbed.floors
    return [
        Pinned(layer=name, reason=floors[name].reason)
        for name in climbed.composition.levels
        if name in floors and name not in frozenset(kept)
    ]


def _status(climbed: Climbed, kept: Sequence[LayerName]) -> Status:
    if climbed.broken_off is not None:
        return climbed.broken_off
    last = climbed.steps[-1].result.status
    if not last.answers:
        return last
    return Status.FOUND if kept else Status.NOTHING_TO_KEEP


def _message(climbed: Climbed) -> str:
    """Return the message of the last search, with its types if it ended the run."""
    last = climbed.steps[-1]
    if last.result.status.answers:
        return "" if last.result.status is Status.NOTHING_TO_KEEP else last.result.message
    options = last.prepared.case.options
    return f"{options.low} against {options.high}: {last.result.message}".rstrip(": ")


def _rungs(climbed: Climbed) -> list[Rung]:
    """Return what computes in each type of the ladder, highest first."""
    last, ladder = climbed.steps[-1], climbed.composition.ladder
    table, options = last.prepared.case.model.table, last.prepared.case.options
    pair = Pair(low=options.low, high=options.high)
    counts = Counter(assigned(table, pair, table.plan_of(last.kept)).values())
    rungs = [
        Rung(precision=ladder[level], layers=layers, count=counts[ladder[level]])
        for level, layers in reversed(list(climbed.chosen.items()))
    ]
    return [*rungs, Rung(precision=ladder[0], layers=None, count=counts[ladder[0]])]


def _certificate(climbed: Climbed, kept: Sequence[LayerName]) -> Certificate:
    """Put the certificates of the rungs together, as far as they hold for the whole.

    The proof of a rung holds only if its search saw the final composition.
    """
    needs: dict[str, Need] = {}
    for level, layers in climbed.chosen.items():
        needs |= {
            name: Need(layer=name, needed=None, reason="not tried: the run ended before")
            for name in layers
        }
        proof = climbed.proof_of(level - 1)
        if proof is not None:
            needs |= {need.layer: need for need in proof.result.certificate.evidence}
    evidence = [needs[name] for name in kept]
    proven = [step for rung in climbed.chosen if (step := climbed.proof_of(rung - 1))]
    # One reason for all rungs is that of the whole; several have no common word.
    reasons = {step.result.certificate.uncertified for step in proven}
    return Certificate(
        minimal=climbed.steps[-1].answered and all(need.needed for need in evidence),
        checked=[need.layer for need in evidence if need.needed],
        unchecked=[n.layer for n in evidence if not n.needed and n.how != "predicted"],
        mode=climbed.steps[-1].result.certificate.mode,
        uncertified=reasons.pop() if len(reasons) == 1 else None,
        evidence=evidence,
        forecasts=forecasts_of([step.result.certificate for step in proven]),
    )


def _own(latency_ms: Mapping[str, float | None] | None) -> Mapping[str, float | None] | None:
    """Return the latency of the answer alone; None where it was not measured."""
    kept = None if latency_ms is None else latency_ms["kept"]
    return None if kept is None else {"all_high": None, "all_low": None, "kept": kept}


def _effort(climbed: Climbed) -> int:
    """Return how many trials the ledgers of all searches hold."""
    return sum(len(read_ledger(step.ledger).trials) for step in climbed.steps)


def explain_ladder(climbed: Climbed, budget: Budget, observer: Observer) -> Findings:
    """Return the findings of all rungs, in network order: why a layer is kept comes first.

    A layer has one entry for each rung below its type on which it has a form. The one for the next
    lower type rests on trials, those further down on its values alone. What is borderline on one
    rung may be kept by the next. Rungs without an answer are left out. A budget that is late tries
    nothing.
    """
    parts = [
        part
        for rung in reversed(climbed.rungs)
        for part in _of_rung(climbed, rung, budget, observer)
    ]
    order = {str(name): i for i, name in enumerate(climbed.composition.levels)}
    layers = [layer for part in parts for layer in part.layers]
    return Findings(
        low=climbed.composition.ladder[0],
        layers=sorted(layers, key=lambda layer: (order[layer.layer], not layer.kept)),
        spread=[birth for part in parts for birth in part.spread],
        advice=[advice for part in parts for advice in part.advice],
    )


def nearest(findings: Findings) -> Mapping[str, Finding]:
    """Return for each kept layer the finding of its highest rung: why it goes no lower."""
    highest: dict[str, Finding] = {}
    for finding in findings.layers:
        if finding.kept:
            highest.setdefault(finding.layer, finding)
    return highest


def _of_rung(
    climbed: Climbed, rung: int, budget: Budget, observer: Observer
) -> Iterator[Findings]:
    """Yield what the last search of a rung says of the layers that its answer keeps."""
    step = next((step for step in reversed(climbed.steps) if step.rung == rung), None)
    if step is None or climbed.cut_short or not step.result.status.answers:
        return
    own = [name for name in climbed.chosen[rung + 1] if name in frozenset(step.kept)]
    above = list(_above(climbed, rung))
    if not own and not above:
        return
    answer = Answer(
        record=replace(step.result, kept=[*own, *above]), trials=read_ledger(step.ledger).own
    )
    findings = Findings(low=step.prepared.case.options.low)
    with reopened(step.prepared, step.ledger, budget, observer) as driver, climbed.noting(driver):
        explaining = explained_in_time(step.prepared, driver, answer, budget)
        findings = driver.run(driver.to_end(explaining)).findings
    pair = climbed.composition.pair(rung)
    yield replace(
        findings,
        layers=[_told(climbed, finding, frozenset(above)) for finding in findings.layers],
        advice=[
            replace(advice, evidence=f"{pair.low} against {pair.high}: {advice.evidence}")
            for advice in findings.advice
        ],
    )


def _above(climbed: Climbed, rung: int) -> Iterator[LayerName]:
    """Yield the layers that higher rungs keep, and that have a form on this one."""
    for level in climbed.chosen:
        for name in climbed.chosen[level] if level > rung + 1 else ():
            floor = climbed.floors.get(name)
            # A layer without a form in the lower type has nothing to explain on this rung.
            if floor is None or floor.level <= rung:
                yield name


def _told(climbed: Climbed, finding: Finding, above: frozenset[LayerName]) -> Finding:
    """Return the finding; if a higher rung keeps the layer, the evidence says so."""
    if finding.layer not in above:
        return finding
    levels = climbed.composition.levels
    high = climbed.composition.ladder[levels[LayerName(finding.layer)]]
    words = "it is {high} for another reason, and was not tried in {low}"
    not_tried = Sign(words, high=high, low=finding.low)
    return replace(finding, high=high, evidence=finding.evidence.also(not_tried))
