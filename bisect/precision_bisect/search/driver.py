"""The driver: the only place that has plans evaluated.

Every trial takes the same way: look it up in the ledger, ask the budget, record the intent, build,
run and judge, record the outcome, tell the observers. A batch of proposals goes this way side by
side, as many at a time as there are workers.

Strategies are generators that the driver feeds. A resumed run feeds them the recorded outcomes
first, so it reaches the same state without building anything.

Evaluations run wherever the executor runs them. Ledger, budget and observer are used in the
driver's thread only.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from precision_bisect.errors import ExecutorError
from precision_bisect.machine.stopping import STOPS
from precision_bisect.plan import Plan
from precision_bisect.protocols import Ledger, Search, T
from precision_bisect.runs.monitoring.events import (
    Observer,
    PhaseStarted,
    TrialFinished,
    TrialStarted,
    Warned,
)
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.combinators import Batch, Outcomes, answered, feed
from precision_bisect.search.in_flight import InFlight
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.precision_curve import FEW_COPIES
from precision_bisect.search.workers import Workers
from precision_bisect.trial import (
    JUDGED_KINDS,
    Identity,
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
)

MOST_LOST = 5
"""Trials in a row that lose their process in the same way, from which the run ends: the machine or
the model is to blame then, not a plan. A limit of what the user waits."""

MOST_REPEATED = 1000
"""Proposals in a row that this session has answered before, beside a few for each trial, from
which on a search gets nowhere. A bound: a ranking that is asked for again has one a layer."""
_TIMES_EACH = 8


class CrashLoop(Exception):
    """Raised when trials lose their process in a row, or nothing takes them; it says how."""


class Driver:
    """Runs searches with some workers, a ledger and a budget.

    `cases` evaluate the trials of other cases than the run's own. Those that explain an answer
    count as forecasts do: in time and effort, and not among the trials that a user limits.
    """

    def __init__(
        self, workers: Workers, ledger: Ledger, budget: Budget, observer: Observer
    ) -> None:
        self._budget = budget
        self._observer = observer
        self._known = {trial.proposal.identity: trial for trial in ledger.trials()}
        self.cases = Cases()
        self._flights = InFlight(ledger, workers, self.cases)
        self._phase: Phase | None = None
        self._lost: list[Trial] = []
        self.interrupted = False
        self._told: set[Identity] = set()
        self._repeated = 0

    @property
    def trials(self) -> Sequence[Trial]:
        """Every trial of the run's own case that has ended, of earlier sessions too."""
        return tuple(trial for trial in self._known.values() if not trial.proposal.case)

    @property
    def every_trial(self) -> Sequence[Trial]:
        """Every trial of all cases that has ended: what the run has cost."""
        return tuple(self._known.values())

    @property
    def lost(self) -> Sequence[Trial]:
        """The latest trials of this session that lost their process, without a gap."""
        return tuple(self._lost)

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends, and return its result. Raises what `consider_all` does."""
        return feed(search, self.consider_all)

    def to_end(self, search: Search[T]) -> Search[T]:
        """Return a search that tells more of an answer, which goes to its end whatever happens.

        Once the run is to end nothing more is evaluated: what the ledger lacks has an outcome then
        that says why, and is tried when the run is resumed. What cases have taken is freed.
        """
        why = ""

        def answer(batch: Batch) -> Search[Outcomes]:
            nonlocal why
            try:
                if not why:
                    return (yield batch)
            except KeyboardInterrupt:
                self.interrupt()
                why = "interrupted"
            except (BudgetSpent, CrashLoop, *STOPS) as end:
                why = "the time was up" if self._budget.late else str(end)
            left_out = Outcome(status=TrialStatus.TIMED_OUT, message=why)
            return tuple(self.recorded(proposal) or left_out for proposal in batch)

        try:
            return (yield from answered(search, answer))
        finally:
            self.cases.clear()

    def interrupt(self) -> None:
        """Have no trial begin any more."""
        self.interrupted = True

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let what stands survive what ends the block early; after Ctrl-C no trial begins."""
        try:
            yield
        except (BudgetSpent, CrashLoop, *STOPS):
            pass
        except KeyboardInterrupt:
            self.interrupt()

    def retrace(self, search: Search[object]) -> None:
        """Feed a search from the ledger alone, until it ends or asks for what the ledger lacks."""
        try:
            batch = next(search)
            while all(proposal.identity in self._known for proposal in batch):
                batch = search.send(
                    tuple(self._known[proposal.identity].outcome for proposal in batch)
                )
        except StopIteration:
            pass

    def consider_all(self, batch: Sequence[Proposal]) -> tuple[Outcome, ...]:
        """Return the outcomes of the proposals, in their order.

        Known outcomes come from the ledger; a proposal that occurs twice is evaluated once. Raises
        BudgetSpent when the budget ends within the batch, or nothing new has been asked for so
        long that the search would never end, CrashLoop, and KeyboardInterrupt. Before
        it raises, it waits for the trials in flight and records them; a second KeyboardInterrupt
        gives them up.
        """
        self._refuse_endless(batch)
        fresh: dict[Identity, Proposal] = {}
        for proposal in batch:
            if proposal.identity in self._known:
                self._recall(proposal)
            else:
                fresh.setdefault(proposal.identity, proposal)
        self._evaluate(deque(fresh.values()))
        # A proposal that occurs twice in the batch: observers are told of each occurrence.
        for proposal in batch:
            if fresh.get(proposal.identity, proposal) is not proposal:
                self._recall(proposal)
        return tuple(self._known[proposal.identity].outcome for proposal in batch)

    @property
    def phase(self) -> Phase:
        """What the run is at, or was when it ended."""
        return self._phase or Phase.PREFLIGHT

    def best(self) -> Trial | None:
        """Return the smallest plan that nothing speaks against; None before the first.

        Plans that held on copies come first. Once a re-check refuted an answer, no plan that keeps
        as few layers is believed without copies. Samples held out decide nothing.
        """
        refuted = [
            trial.proposal.plan
            for trial in self.trials
            if trial.proposal.phase is Phase.RECHECK
            and trial.proposal.samples != SampleSet.HELD_OUT
            and not trial.outcome.passed
        ]
        # -1: without a refuted answer even the plan that keeps nothing is believed.
        least = max(map(len, refuted), default=-1)
        believed = [
            trial
            for trial in self._passing()
            if trial.proposal.draw or len(trial.proposal.plan) > least
        ]
        return min(believed, key=lambda t: (not t.proposal.draw, t.proposal.plan), default=None)

    def nearly(self) -> Trial | None:
        """Return the answer that failed on the fewest samples that did not choose it, if any did.

        It has held on those that chose it.
        """
        failed = {
            trial.proposal.plan: len(one_by_one.failed)
            for trial in self.trials
            if _judged(trial)
            and (one_by_one := trial.outcome.evidence.one_by_one)
            and one_by_one.failed
            if trial.proposal.samples.singly
        }
        passed = (t for t in self.trials if t.proposal.samples.judges and t.outcome.passed)
        chosen = [trial for trial in passed if trial.proposal.plan in failed]
        # The last of its trials has the most copies.
        return min(
            reversed(chosen),
            key=lambda t: (failed[t.proposal.plan], t.proposal.plan),
            default=None,
        )

    def unsteady(self) -> Trial | None:
        """Return the plan that passes on the samples, and fails on the least part of its copies.

        Of several it is the smallest.
        """
        failed: dict[Plan, float] = {}
        never: set[Plan] = set()
        for trial in self.trials:
            plan, stability = trial.proposal.plan, trial.outcome.evidence.stability
            if trial.outcome.failed and stability and stability.failed:
                share = stability.failed / stability.copies
                failed[plan] = max(share, failed.get(plan, 0.0))
            elif _judged(trial) and not trial.outcome.passed:
                never.add(plan)
        passing = [
            trial
            for trial in self.trials
            if trial.proposal.plan in failed.keys() - never
            and trial.proposal.kind is Kind.JUDGE
            and (trial.outcome.passed or trial.outcome.evidence.output_errors)
        ]
        return min(
            passing,
            key=lambda t: (failed[t.proposal.plan], t.proposal.plan, bool(t.proposal.draw)),
            default=None,
        )

    def outcome_of(
        self, plan: Plan, samples: SampleSet, kind: Kind = Kind.JUDGE
    ) -> Outcome | None:
        """Return the outcome of a plan on a sample set, without copies, if it was tried."""
        return self.recorded(Proposal(plan=plan, samples=samples, kind=kind))

    def recorded(self, proposal: Proposal) -> Outcome | None:
        """Return the outcome of a proposal, None if it has not been evaluated."""
        trial = self._known.get(proposal.identity)
        return trial.outcome if trial else None

    def judged(self, plan: Plan, samples: SampleSet) -> Outcome | None:
        """Return what a plan came to on a sample set: without copies if it was tried, else last.

        An answer that was widened until other samples hold may only have been built afresh.
        """
        again = (
            trial.outcome
            for trial in reversed(self.trials)
            if trial.proposal.plan == plan
            and trial.proposal.samples == samples
            and trial.proposal.kind in JUDGED_KINDS
        )
        return self.outcome_of(plan, samples) or next(again, None)

    @property
    def refuted(self) -> frozenset[Plan]:
        """The plans that have failed as an answer, on copies or when they were built afresh."""
        return _refuted(self.trials)

    def refuted_before(self, phase: Phase) -> frozenset[Plan]:
        """Return the same of the trials before the first of a phase."""
        return _refuted(takewhile(lambda t: t.proposal.phase is not phase, self.trials))

    def on_copies(self, plan: Plan) -> Outcome | None:
        """Return the last outcome of a plan on copies of the samples, None if there is none.

        What has few copies, such as a point of the curve, counts only where there is no other.
        """
        drawn = [
            trial
            for trial in reversed(self.trials)
            if trial.proposal.plan == plan and trial.outcome.evidence.stability
        ]
        # `sort` is stable: within both halves the latest trial stays first.
        drawn.sort(key=lambda trial: trial.proposal.phase in FEW_COPIES)
        return drawn[0].outcome if drawn else None

    def _passing(self) -> Sequence[Trial]:
        """Return the trials that passed on judging samples, of plans that never failed."""
        judged = [trial for trial in self.trials if _judged(trial)]
        failed = {trial.proposal.plan for trial in judged if not trial.outcome.passed}
        return [
            trial
            for trial in judged
            if trial.proposal.samples.judges and trial.proposal.plan not in failed
        ]

    def _refuse_endless(self, batch: Sequence[Proposal]) -> None:
        """Raise BudgetSpent for a search that asks on and on for what it has been told."""
        identities = {proposal.identity for proposal in batch}
        if identities <= self._told:
            self._repeated += max(1, len(batch))
        else:
            self._repeated = 0
        self._told |= identities
        if self._repeated > MOST_REPEATED + _TIMES_EACH * len(self._known):
            asked = f"the last {self._repeated} plans that the search asked for were known to it"
            raise BudgetSpent(f"{asked}; choose another --strategy")

    def _recall(self, proposal: Proposal) -> None:
        outcome = self._known[proposal.identity].outcome
        self._enter(proposal.phase)
        self._observer(TrialFinished(proposal=proposal, outcome=outcome, recalled=True))

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._phase = phase
            self._observer(PhaseStarted(phase=phase))

    def _evaluate(self, waiting: deque[Proposal]) -> None:
        """Evaluate the proposals, as many side by side as there are workers."""
        try:
            while waiting or self._flights:
                while waiting and self._flights.may_start(waiting[0]):
                    self._launch(waiting.popleft())
                self._flights.land(self._ended)
        # BaseException, since Ctrl-C is one: builds that are nearly done are worth waiting for,
        # and their outcomes are recorded before the error goes on.
        except BaseException as error:
            self.interrupted |= isinstance(error, KeyboardInterrupt)
            try:
                if isinstance(error, KeyboardInterrupt) and self._flights:
                    flying = len(self._flights)
                    trials = "the trial" if flying == 1 else f"the {flying} trials"
                    note = f"waiting for {trials} in flight, Ctrl-C again gives up on that"
                    self._observer(Warned(message=f"interrupted; {note}"))
                self._flights.finish(self._ended)
            finally:
                self._flights.give_up()
            if isinstance(error, ExecutorError):
                raise CrashLoop(error.one_line()) from error
            raise

    def _launch(self, proposal: Proposal) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self._enter(proposal.phase)
        self._budget.admit(counted=not proposal.forecast)
        self._flights.launch(proposal, lambda: self._observer(TrialStarted(proposal=proposal)))

    def _ended(self, trial: Trial) -> None:
        proposal, outcome = trial.proposal, trial.outcome
        self._known[proposal.identity] = trial
        self._observer(TrialFinished(proposal=proposal, outcome=outcome, recalled=False))
        self._count(trial)

    def _count(self, trial: Trial) -> None:
        """Raise CrashLoop where too many trials in a row have lost their process the same way."""
        status = trial.outcome.status
        if not status.fatal:
            self._lost.clear()
            return
        self._lost.append(trial)
        same = [earlier for earlier in self._lost[-MOST_LOST:] if earlier.outcome.status is status]
        # Only the same status counts: a hang after two crashes is another trouble.
        if len(same) == MOST_LOST:
            raise CrashLoop(
                f"{MOST_LOST} trials in a row ended as {status}, the last: {trial.outcome.message}"
            )


def _judged(trial: Trial) -> bool:
    """Tell whether a trial may decide on a plan."""
    proposal = trial.proposal
    deciding = proposal.samples.judges or (
        proposal.samples.singly and proposal.phase is Phase.RECHECK
    )
    return proposal.kind in JUDGED_KINDS and deciding and proposal.samples != SampleSet.HELD_OUT


def _refuted(trials: Iterable[Trial]) -> frozenset[Plan]:
    failed = (trial.proposal for trial in trials if trial.outcome.failed)
    return frozenset(entry.plan for entry in failed if entry.phase is Phase.RECHECK)
