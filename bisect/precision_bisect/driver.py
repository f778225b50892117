"""The driver: the only caller of a backend.

Every trial goes through `Driver.consider`: look it up, ask the budget, record the intent,
evaluate, judge, record the outcome, tell. Strategies are generators that the driver feeds; a
resumed run feeds them the recorded outcomes first, so it comes to the same place without
evaluating anything.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from precision_bisect.budget import Budget
from precision_bisect.errors import RunFolderError
from precision_bisect.events import Observer, PhaseStarted, TrialFinished, TrialStarted
from precision_bisect.plan import Plan
from precision_bisect.protocols import (
    Backend,
    BackendFailure,
    Comparator,
    Judgement,
    Ledger,
    Sample,
    Search,
    T,
)
from precision_bisect.reference import non_finite
from precision_bisect.trial import (
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


class Driver:
    """Runs searches over one backend, comparator, ledger and budget."""

    def __init__(
        self,
        backend: Backend,
        comparator: Comparator,
        ledger: Ledger,
        samples: Samples,
        budget: Budget,
        observer: Observer,
    ) -> None:
        self._backend = backend
        self._comparator = comparator
        self._ledger = ledger
        self._samples = samples
        self._budget = budget
        self._observer = observer
        self._known = {trial.proposal.identity: trial for trial in ledger.trials()}
        self._phase: Phase | None = None

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
        self._budget.admit(counted=proposal.phase is not Phase.RANKING)
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
            trial.proposal.samples is SampleSet.HELD_OUT and not trial.outcome.passed
            for trial in self.trials
        )
        if refuted and (on_all := self._passing(SampleSet.ALL)):
            return on_all[0]
        judged = self._passing(SampleSet.JUDGED)
        if not judged:
            return None
        return judged[-1] if refuted else judged[0]

    def outcome_of(self, plan: Plan, samples: SampleSet, repeat: int = 0) -> Outcome | None:
        """Return the outcome of a plan on a sample set, if it was tried."""
        proposal = Proposal(plan=plan, samples=samples, repeat=repeat)
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
                and trial.proposal.repeat == 0
            ),
            key=lambda trial: trial.proposal.plan,
        )

    def _evaluate(self, proposal: Proposal) -> Outcome:
        started = time.perf_counter()
        feeds, reference = self._samples[proposal.samples]
        try:
            outputs = self._outputs(proposal.plan, feeds)
            if proposal.repeat:
                reference = self._outputs(proposal.plan, feeds)
            judgement = self._judge(outputs, reference)
        except BackendFailure as failure:
            return replace(failure.outcome, wall_s=time.perf_counter() - started)
        return Outcome(
            status=TrialStatus.FINISHED,
            verdict=judgement.verdict,
            error=judgement.error,
            message=judgement.message,
            wall_s=time.perf_counter() - started,
        )

    def _outputs(self, plan: Plan, feeds: Sequence[Sample]) -> list[Sample]:
        """Return the outputs sample by sample, up to the first that is not finite."""
        outputs: list[Sample] = []
        for feed in feeds:
            outputs.append(self._backend.evaluate(plan, feed))
            if non_finite(outputs[-1:]):
                break
        return outputs

    def _judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        if trouble := non_finite(outputs) or non_finite(reference):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
        return self._comparator.judge(outputs, reference)
