"""The driver: the only caller of a backend.

Every trial goes through `Driver.consider`: look it up, ask the budget, record the intent, build,
run, judge, record the outcome, tell. Strategies are generators that the driver feeds; a resumed
run feeds them the recorded outcomes first, so it comes to the same place without building
anything.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.budget import Budget
from precision_bisect.errors import RunFolderError
from precision_bisect.events import Observer, PhaseStarted, TrialFinished, TrialStarted
from precision_bisect.evidence import Evidence
from precision_bisect.plan import Plan
from precision_bisect.protocols import (
    Backend,
    BackendFailure,
    Comparator,
    Engine,
    Judgement,
    Ledger,
    Sample,
    Search,
    T,
)
from precision_bisect.reference import non_finite
from precision_bisect.trial import (
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
    Verdict,
)

Samples = Mapping[SampleSet, tuple[Sequence[Sample], Sequence[Sample]]]
"""For each sample set the feeds and their reference outputs, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluators:
    """What evaluates the trials of a run.

    `emulator` answers `Kind.PREDICT` and may be the backend itself. `keep` is the folder for the
    engine of a plan that passed when it was built afresh.
    """

    backend: Backend
    emulator: Backend
    comparator: Comparator
    samples: Samples
    keep: Path


class Driver:
    """Runs searches over one backend, comparator, ledger and budget."""

    def __init__(
        self, evaluators: Evaluators, ledger: Ledger, budget: Budget, observer: Observer
    ) -> None:
        self._with = evaluators
        self._ledger = ledger
        self._budget = budget
        self._observer = observer
        self._known = {trial.proposal.identity: trial for trial in ledger.trials()}
        self._phase: Phase | None = None
        self._first: tuple[Proposal, list[Sample]] | None = None

    @property
    def trials(self) -> Sequence[Trial]:
        """Every trial that has ended, of earlier sessions too."""
        return tuple(self._known.values())

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends, and return its result. Raises BudgetSpent."""
        try:
            batch = next(search)
            while True:
                batch = search.send(tuple(self.consider(proposal) for proposal in batch))
        except StopIteration as end:
            result: T = end.value
            return result

    def consider(self, proposal: Proposal) -> Outcome:
        """Return the outcome of a proposal, from the ledger or by evaluating it now."""
        if proposal.phase is not self._phase:
            self._phase = proposal.phase
            self._observer(PhaseStarted(phase=proposal.phase))
        known = self._known.get(proposal.identity)
        if known is not None:
            self._observer(TrialFinished(proposal=proposal, outcome=known.outcome, recalled=True))
            return known.outcome
        self._budget.admit(counted=proposal.kind is not Kind.PREDICT)
        self._ledger.start(proposal)
        try:
            self._observer(TrialStarted(proposal=proposal))
            outcome = self._evaluate(proposal)
            self._ledger.finish(proposal, outcome)
        except BaseException:
            with suppress(RunFolderError):
                self._ledger.withdraw(proposal)
            raise
        self._known[proposal.identity] = Trial(proposal=proposal, outcome=outcome)
        self._observer(TrialFinished(proposal=proposal, outcome=outcome, recalled=False))
        return outcome

    def best(self) -> Trial | None:
        """Return the smallest plan that nothing speaks against; None before the first.

        It passed on the judging samples; once an answer was refuted on those held out, on all,
        and while none has, it is the largest of the former.
        """
        refuted = any(
            trial.proposal.phase is Phase.RECHECK and not trial.outcome.passed
            for trial in self.trials
        )
        if refuted and (on_all := self._passing(SampleSet.ALL)):
            return on_all[0]
        judged = self._passing(SampleSet.JUDGED)
        if not judged:
            return None
        return judged[-1] if refuted else judged[0]

    def outcome_of(
        self, plan: Plan, samples: SampleSet, kind: Kind = Kind.JUDGE
    ) -> Outcome | None:
        """Return the outcome of a plan on a sample set, if it was tried."""
        proposal = Proposal(plan=plan, samples=samples, kind=kind)
        known = self._known.get(proposal.identity)
        return known.outcome if known else None

    def _passing(self, samples: SampleSet) -> Sequence[Trial]:
        """Return the trials that passed on a sample set, smallest plan first."""
        return sorted(
            (
                trial
                for trial in self.trials
                if trial.outcome.passed
                and trial.proposal.samples is samples
                and trial.proposal.kind is Kind.JUDGE
            ),
            key=lambda trial: trial.proposal.plan,
        )

    def _evaluate(self, proposal: Proposal) -> Outcome:
        started = time.perf_counter()
        try:
            outcome = self._build_and_judge(proposal)
        except BackendFailure as failure:
            outcome = failure.outcome
        return replace(outcome, wall_s=time.perf_counter() - started)

    def _build_and_judge(self, proposal: Proposal) -> Outcome:
        predicted = proposal.kind is Kind.PREDICT
        backend = self._with.emulator if predicted else self._with.backend
        feeds, reference = self._with.samples[proposal.samples]
        if proposal.kind is Kind.REPEAT:
            reference = self._first_outputs(proposal, feeds)
        with backend.build(proposal.plan) as engine:
            outputs = _outputs(engine, feeds)
            if proposal.kind is Kind.JUDGE:
                self._first = proposal, outputs
            judgement = self._judge(outputs, reference)
            evidence = engine.evidence()
            if proposal.timed:
                evidence = _timed(engine, feeds[0], evidence)
            if proposal.kind is Kind.REBUILD and judgement.verdict is Verdict.PASS:
                self._keep(engine)
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

    def _keep(self, engine: Engine) -> None:
        try:
            engine.save(self._with.keep)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the engine into {self._with.keep}: {error.strerror}",
                "free some space, then go on with --resume",
            ) from error

    def _first_outputs(self, repeat: Proposal, feeds: Sequence[Sample]) -> Sequence[Sample]:
        """Return the outputs of the first run, from memory where that was the last trial."""
        if self._first is not None:
            first, outputs = self._first
            if (first.plan, first.samples) == (repeat.plan, repeat.samples):
                return outputs
        with self._with.backend.build(repeat.plan) as engine:
            return _outputs(engine, feeds)

    def _judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        if trouble := non_finite(outputs) or non_finite(reference):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
        return self._with.comparator.judge(outputs, reference)


def _outputs(engine: Engine, feeds: Sequence[Sample]) -> list[Sample]:
    """Return the outputs sample by sample, up to the first that is not finite."""
    outputs: list[Sample] = []
    for feed in feeds:
        outputs.append(engine.run(feed))
        if non_finite(outputs[-1:]):
            break
    return outputs


def _timed(engine: Engine, feed: Sample, evidence: Evidence) -> Evidence:
    """Return the evidence with the latency; a measurement that fails costs only its figure."""
    try:
        return replace(evidence, latency=engine.time(feed))
    except BackendFailure as failure:
        note = f"the latency could not be measured: {failure.outcome.message}"
        return replace(evidence, notes=(*evidence.notes, note))


def _disobeyed(evidence: Evidence) -> str:
    first, *others = evidence.demoted
    more = f" (and {len(others)} more)" if others else ""
    return f"the engine does not keep {first.layer!r}: {first.evidence}{more}"
