"""The unit of work: one proposal, built, run and judged.

`evaluate` is a plain function of its arguments and touches neither ledger nor observer, so that
any executor can run it, several at a time.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from precision_bisect.errors import RunFolderError
from precision_bisect.evidence import Evidence
from precision_bisect.plan import Plan
from precision_bisect.protocols import (
    Backend,
    BackendFailure,
    Comparator,
    Engine,
    Judgement,
    Sample,
)
from precision_bisect.reference import non_finite
from precision_bisect.speed.stopwatch import Stopwatch
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet, TrialStatus, Verdict

Samples: TypeAlias = Mapping[SampleSet, tuple[Sequence[Sample], Sequence[Sample]]]
"""For each sample set the feeds and their reference outputs, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluators:
    """What evaluates the trials of a run. With several workers each part serves all of them.

    `emulator` answers `Kind.PREDICT` and may be the backend itself. `keep` is the folder for the
    engine of a plan that passed when it was built afresh. `stopwatch` times the trials that ask
    for it.
    """

    backend: Backend
    emulator: Backend
    comparator: Comparator
    samples: Samples
    keep: Path
    stopwatch: Stopwatch = field(default_factory=Stopwatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What one evaluation came to; `outputs` are there where a repeat could be judged by them."""

    outcome: Outcome
    outputs: Sequence[Sample] | None = None


def evaluate(
    tools: Evaluators, proposal: Proposal, first: Sequence[Sample] | None = None
) -> Evaluated:
    """Evaluate a proposal; what the backend fails at is an outcome.

    `first` are the outputs of the first run where `proposal` repeats it and they are at hand; else
    a repeat builds the plan twice. Raises RunFolderError where an engine cannot be saved.
    """
    try:
        return _build_and_judge(tools, proposal, first)
    except BackendFailure as failure:
        return Evaluated(outcome=failure.outcome)


def _build_and_judge(
    tools: Evaluators, proposal: Proposal, first: Sequence[Sample] | None
) -> Evaluated:
    backend = tools.emulator if proposal.kind is Kind.PREDICT else tools.backend
    feeds, reference = tools.samples[proposal.samples]
    if proposal.kind is Kind.REPEAT:
        reference = first if first is not None else _first_outputs(tools, proposal, feeds)
    with ExitStack() as held:
        engine = held.enter_context(backend.build(proposal.plan))
        outputs = _outputs(engine, feeds)
        judgement = _judge(tools.comparator, outputs, reference)
        evidence = engine.evidence()
        if proposal.timed:
            evidence = _timed(tools.stopwatch, proposal.plan, engine, feeds[0], evidence)
        if proposal.phase is Phase.RECHECK and judgement.verdict is Verdict.PASS:
            _keep(engine, tools.keep)
        if proposal.timed:
            tools.stopwatch.adopt(proposal.plan, engine, held)
    return Evaluated(
        outcome=_outcome(judgement, evidence),
        outputs=outputs if proposal.kind is Kind.JUDGE else None,
    )


def _outcome(judgement: Judgement, evidence: Evidence) -> Outcome:
    if evidence.demoted:
        return Outcome(
            status=TrialStatus.NOT_HONOURED,
            error=judgement.error,
            message=_disobeyed(evidence),
            evidence=evidence,
        )
    return Outcome(
        status=TrialStatus.FINISHED,
        verdict=judgement.verdict,
        error=judgement.error,
        message=judgement.message,
        evidence=evidence,
    )


def _first_outputs(
    tools: Evaluators, repeat: Proposal, feeds: Sequence[Sample]
) -> Sequence[Sample]:
    with tools.backend.build(repeat.plan) as engine:
        return _outputs(engine, feeds)


def _judge(
    comparator: Comparator, outputs: Sequence[Sample], reference: Sequence[Sample]
) -> Judgement:
    if trouble := non_finite(outputs) or non_finite(reference):
        return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
    return comparator.judge(outputs, reference)


def _keep(engine: Engine, folder: Path) -> None:
    try:
        engine.save(folder)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the engine into {folder}: {error.strerror}",
            "free some space, then go on with --resume",
        ) from error


def _outputs(engine: Engine, feeds: Sequence[Sample]) -> list[Sample]:
    """Return the outputs sample by sample, up to the first that is not finite."""
    outputs: list[Sample] = []
    for feed in feeds:
        outputs.append(engine.run(feed))
        if non_finite(outputs[-1:]):
            break
    return outputs


def _timed(
    stopwatch: Stopwatch, plan: Plan, engine: Engine, feed: Sample, evidence: Evidence
) -> Evidence:
    """Return the evidence with the latency; a measurement that fails costs only its figure."""
    try:
        return replace(evidence, latency=stopwatch.time(plan, engine, feed))
    except BackendFailure as failure:
        note = f"the latency could not be measured: {failure.outcome.message}"
        return replace(evidence, notes=(*evidence.notes, note))


def _disobeyed(evidence: Evidence) -> str:
    first, *others = evidence.demoted
    more = f" (and {len(others)} more)" if others else ""
    return f"the engine does not keep {first.layer!r}: {first.evidence}{more}"
