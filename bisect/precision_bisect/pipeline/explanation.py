"""From an answer to the reasons for it, to borderline layers, and to what would change it.

Borderline layers run low in an answer, and take much of the tolerance there.
"""

import heapq
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from precision_bisect.explaining.advice.advise import advised
from precision_bisect.explaining.advice.diagnosed_model import DiagnosedModel
from precision_bisect.explaining.advice.variants import Allowance, Variants
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Finding, Findings, Sign
from precision_bisect.explaining.diagnosis.watched_tensors import WatchedTensors
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.machine.stopping import Stopped, until
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.pipeline.stability import one
from precision_bisect.protocols import Search
from precision_bisect.runs.results.result import AnswerSection
from precision_bisect.runs.results.tensor_errors import TensorErrors, read_tensor_errors
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.speed.costs import inference_work
from precision_bisect.trial import Kind, Outcome, Phase, SampleSet, Trial

MOST_BORDERLINE = 5
"""Borderline layers that are explained, at most: those that take most. A bound for readers."""
NEAR_SHARE = 0.1
"""Share of the tolerance from which a layer that runs low is borderline. Half: 5 of 20 models are
told otherwise; double: 6 of 20 models are told otherwise, in benchmarks/constants.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Borderline:
    """What a layer takes of the tolerance, by errors on its scale; None for what was not tried.

    `alone` is the error with this layer alone low, from the ranking or a trial. `added` is the
    growth of the error when the search dropped this layer alone from a plan and the rest still
    passed; of several such plans it is the smallest one's.
    """

    alone: float | None
    added: float | None
    tolerance: float
    error: float | None

    @property
    def share(self) -> float:
        """The larger of both as a share of the tolerance."""
        return max(self.alone or 0.0, self.added or 0.0) / self.tolerance

    @property
    def figures(self) -> Mapping[str, Any]:
        return {"alone_error": self.alone, "added_error": self.added, "share": self.share}

    @property
    def signs(self) -> Iterator[Sign]:
        """What to append to the evidence: errors, their share, and what the answer leaves."""
        if self.added is not None:
            what = "added" if self.added >= 0 else "took away"
            yield self._error(f"dropping it {what}", abs(self.added))
        if self.alone is not None:
            yield self._error("alone low:", self.alone)
        if self.error is not None:
            room = max(0.0, 1.0 - self.error / self.tolerance)
            yield Sign("{room:.0%} of the tolerance is left", room=room)

    def _error(self, words: str, error: float) -> Sign:
        share = error / self.tolerance
        part = ", {share:.0%} of the tolerance" if share < math.inf else ""
        return Sign(f"{words} {{error:.3g}}{part}", error=error, share=share)


def borderline_layers(
    names: Sequence[str],
    kept: Sequence[str],
    trials: Sequence[Trial],
    *,
    tolerance: float | None,
    error: float | None,
) -> dict[str, Borderline]:
    """Return the borderline layers, those that take most of the tolerance first.

    `names` are the candidates, `kept` those of them that the answer keeps, `error` is the
    answer's. There are none without a tolerance, or with a tolerance of 0.
    """
    if not tolerance:
        return {}
    alone, added = dict(_alone(len(names), trials)), dict(_added(len(names), trials))
    low_layers = {
        names[i]: Borderline(
            alone=alone.get(i), added=added.get(i), tolerance=tolerance, error=error
        )
        for i in sorted(alone.keys() | added.keys())
        if names[i] not in set(kept)
    }
    near = [name for name, borderline in low_layers.items() if borderline.share >= NEAR_SHARE]
    first = sorted(near, key=lambda name: -low_layers[name].share)[:MOST_BORDERLINE]
    return {name: low_layers[name] for name in first}


def _alone(size: int, trials: Sequence[Trial]) -> Iterator[tuple[int, float]]:
    """Yield the layers that ran low by themselves, with the error."""
    everything = (1 << size) - 1
    for trial in trials:
        proposal, error = trial.proposal, trial.outcome.error
        counts = proposal.phase is Phase.RANKING or proposal.kind is Kind.JUDGE
        if counts and size - len(proposal.plan) == 1 and error is not None:
            yield (everything ^ proposal.plan.mask).bit_length() - 1, error


def _added(size: int, trials: Sequence[Trial]) -> Iterator[tuple[int, float]]:
    """Yield the layers that the search dropped by themselves, smaller plans last."""
    by_size: dict[int, list[tuple[int, float]]] = {}
    for trial in trials:
        proposal, outcome = trial.proposal, trial.outcome
        judged = proposal.kind is Kind.JUDGE and proposal.samples.judges
        if judged and outcome.passed and outcome.error is not None:
            by_size.setdefault(len(proposal.plan), []).append((proposal.plan.mask, outcome.error))
    # From the plan that keeps everything only single layers were dropped, which `_alone` has.
    for count in sorted((n for n in by_size if n < size - 1), reverse=True):
        # Of two plans that are one layer apart and both passed, the growth is that layer's.
        for (less, after), (more, before) in product(by_size[count], by_size.get(count + 1, ())):
            if less & more == less:
                yield (less ^ more).bit_length() - 1, after - before


UNSEEN = 32
"""Samples that chose nothing which advice is judged on, at most. A bound on time."""
ADVICE, LEAST_ADVICE = 0.1, 5e10
"""Share of the run's inferences, and multiply-adds, that trying advice may take: the larger of
both. Bounds; the answer is there, and `explain` tries what is left out. An emulated inference of
`NODE_WORK` and more takes about 1e-10 s for each, so the latter are about five seconds."""
LEAST_ADVICE_S = 5.0
"""Seconds that it may take besides, or `ADVICE` of the run's, where --max-time ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan to explain, by what is recorded of it; `trials` are the search's.

    `culprits` are explained, too, and in place of borderline layers where nothing was `found` that
    holds. If it is `late`, only values of one FP32 run explain, and nothing is tried. Advice may
    take the `allowance`. The `fused` form keeps layers, with an outcome.
    """

    record: AnswerSection
    trials: Sequence[Trial]
    culprits: Sequence[str] = ()
    found: bool = True
    late: bool = False
    allowance: Allowance | None = None
    fused: tuple[frozenset[str], Outcome] | None = None


class Explained(NamedTuple):
    """Findings on kept and borderline layers, with advice; and on other culprits."""

    findings: Findings
    culprits: Sequence[Finding] = ()


def explained_in_time(
    prepared: Prepared, driver: Driver, answer: Answer, budget: Budget
) -> Search[Explained]:
    """Explain an answer as `explained` does; by values alone where the time ends meanwhile.

    What the run's engine has shown of its tensors is told as well.
    """
    errors = read_tensor_errors(prepared.case.options.folder)
    if not budget.late:
        with suppress(Stopped), until(lambda: budget.late):
            return seen_in_engine((yield from explained(prepared, driver, answer)), errors)
    with suppress(Stopped), until(budget.overdue):
        late = yield from explained(prepared, driver, replace(answer, late=True))
        return seen_in_engine(late, errors)
    return Explained(Findings(low=prepared.case.options.low))


def seen_in_engine(explained: Explained, errors: TensorErrors | None) -> Explained:
    """Return the findings with what the engine has shown of their layers, every layer low."""
    if errors is None:
        return explained
    by_layer = {error.layer: error for error in errors.tensors}

    def seen(finding: Finding) -> Finding:
        error = by_layer.get(finding.layer)
        if error is None:
            return finding
        sign = Sign("NaN or Inf is born here in the engine itself")
        if finding.layer not in errors.born:
            words = "in the engine itself it is {rms:.2g} off, with what comes in"
            sign = Sign(words, rms=error.rms)
        figures = {**finding.figures, "engine_error": error.rms}
        return replace(finding, evidence=finding.evidence.also(sign), figures=figures)

    layers = [seen(finding) for finding in explained.findings.layers]
    culprits = [seen(finding) for finding in explained.culprits]
    return Explained(replace(explained.findings, layers=layers), culprits)


def explained(prepared: Prepared, driver: Driver, answer: Answer) -> Search[Explained]:
    """Explain the kept layers, the borderline layers and the culprits, and advise by trials.

    The answer stands without an explanation: where explaining fails, nothing is found. Raises
    Stopped where the time ends.
    """
    case = prepared.case
    near = borderline_layers(
        [str(name) for name in case.model.table.names],
        answer.record.kept,
        answer.trials if answer.found else (),
        tolerance=case.comparator.tolerance,
        error=answer.record.error,
    )
    wanted = list(dict.fromkeys([*near, *answer.culprits]))
    try:
        request = replace(
            question(prepared, wanted),
            kept=answer.record.kept,
            drop_errors=answer.record.certificate.errors,
            # Where rounding is spread, no layer is the cause: what FP32 values show is enough.
            brief=answer.late or answer.record.certificate.spread,
            choices=not answer.late,
        )
        findings, watched = diagnose(request)
    except Exception:  # whatever it is, the search is done
        return Explained(Findings(low=case.options.low))
    if not answer.found:
        own_findings, others = list(findings.layers), []
    else:
        own = {*near, *(finding.layer for finding in findings.layers if finding.kept)}
        own_findings = [
            _with_share(finding, near) for finding in findings.layers if finding.layer in own
        ]
        others = [finding for finding in findings.layers if finding.layer not in own]
    findings = replace(findings, layers=own_findings, answered=answer.found)
    if answer.late:
        return Explained(findings, others)
    with suppress(Exception), driver.standing():
        findings = yield from with_advice(
            prepared, driver, findings, watched, answer.trials, answer.allowance, answer.fused
        )
    return Explained(findings, others)


def explain_layers(prepared: Prepared, layers: Sequence[str], *, late: bool) -> Sequence[Finding]:
    """Return what is found of layers whatever the answer keeps; nothing where that fails.

    If it is `late`, they are judged by their values alone.
    """
    try:
        request = replace(question(prepared, layers), brief=late, choices=not late)
        findings, _ = diagnose(request)
    except Exception:  # as above
        return ()
    return findings.layers


def allowance(prepared: Prepared, trials: Sequence[Trial], budget: Budget) -> Allowance:
    """Return what trying advice may take, after a run with these trials."""
    case = prepared.case
    count = sum(
        len(case.sets.numbers(trial.proposal.samples))
        * (1 + (stability.copies if stability else 0))
        for trial in trials
        for stability in (trial.outcome.evidence.stability,)
    )
    least = LEAST_ADVICE / inference_work(case.model, case.shapes)
    ends = math.inf
    if budget.max_time_s is not None:
        ends = time.monotonic() + max(LEAST_ADVICE_S, ADVICE * budget.elapsed_s())
    return Allowance(inferences=max(least, ADVICE * count), until=ends)


def with_advice(
    prepared: Prepared,
    driver: Driver,
    findings: Findings,
    watched: WatchedTensors,
    trials: Sequence[Trial] = (),
    allowance: Allowance | None = None,
    fused: tuple[frozenset[str], Outcome] | None = None,
) -> Search[Findings]:
    """Return the findings with advice. Raises as loading and running models do."""
    case = prepared.case
    builds = [trial.outcome.evidence for trial in trials]
    own_trials = sum(not trial.proposal.forecast for trial in trials) or math.inf
    try:
        with tempfile.TemporaryDirectory(dir=prepared.work) as work:
            diagnosed = DiagnosedModel(
                case=case,
                findings=findings,
                watched=watched,
                work=Path(work),
                cases=driver.cases,
                own=prepared.emulator,
                fused=fused,
                own_trials=own_trials,
                notes=[*dict.fromkeys(note for evidence in builds for note in evidence.notes)],
                listed=[*dict.fromkeys(one for evidence in builds for one in evidence.listed)],
                variants=Variants(
                    unseen=case.sets.unseen(UNSEEN),
                    copies=prepared.copies,
                    allowance=allowance or Allowance(),
                ),
            )
            return (yield from advised(diagnosed))
    finally:
        # The run's own sessions, which advice asks, take memory that the exports need.
        prepared.rest()


def _with_share(finding: Finding, near: Mapping[str, Borderline]) -> Finding:
    """Return the finding with the layer's share of the tolerance, if it is borderline."""
    borderline = near.get(finding.layer)
    if borderline is None:
        return finding
    return replace(
        finding,
        evidence=finding.evidence.also(*borderline.signs),
        figures={**finding.figures, **borderline.figures},
    )


def question(prepared: Prepared, near: Sequence[str]) -> Question:
    """Return what to ask of layers that no answer keeps."""
    case = prepared.case
    tensors = squares(case.model)
    return Question(case=case, kept=(), near=near, tensors=tensors, emulator=prepared.emulator)


def squares(model: Model) -> list[str]:
    """Return the FP32 tensors that hold squares, which advice on scaling looks at."""
    view = View(model)
    return [
        node.output[0]
        for node in view.nodes
        if (operand := view.squared(node))
        and view.array(operand) is None
        and model.elem_types.get(node.output[0]) == onnx.TensorProto.FLOAT
    ]


def worst_layers(prepared: Prepared, count: int) -> Search[list[tuple[str, float]]]:
    """Return the worst layers with their errors on the tolerance's scale, the worst first.

    A check that only passes or fails gives 0 or infinity; NaN counts as infinity. Raises
    RuntimeError without an emulator.
    """
    if prepared.emulator is None:
        raise RuntimeError("this run has no emulator")
    names = prepared.case.model.table.names
    layers: list[tuple[str, float]] = []
    # Negated: `heapq` gives the smallest first.
    groups = [(-(yield from _error(prepared, range(len(names)))), 0, len(names))]
    while groups and len(layers) < count:
        # A single layer at the top is at least as bad as every group that is left.
        error, start, end = heapq.heappop(groups)
        if end - start == 1:
            layers.append((names[start], -error))
            continue
        middle = (start + end) // 2
        for part in ((start, middle), (middle, end)):
            measured = yield from _error(prepared, range(*part))
            heapq.heappush(groups, (-measured, *part))
    return layers


def _error(prepared: Prepared, lowered: Sequence[int]) -> Search[float]:
    plan = prepared.everything.without(lowered)
    outcome = yield from one(
        plan, Phase.RANKING, "the worst", samples=SampleSet.RANKING, kind=Kind.PREDICT
    )
    if outcome.error is None:
        return 0.0 if outcome.passed else math.inf
    return outcome.error
