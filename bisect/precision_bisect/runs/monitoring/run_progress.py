"""What a run is doing, folded from its events; views pull from it when they draw."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import (
    Event,
    PhaseStarted,
    RunStarted,
    TrialFinished,
    TrialsEnded,
    TrialStarted,
)
from precision_bisect.runs.results.curve_of_result import KeptError
from precision_bisect.trial import Identity, Kind, Phase, Proposal, SampleSet, Trial

MOST_LAST = 5
"""So many trials are remembered as the last ones."""
MOST_TIMED = 20
"""So many trials of a phase tell how long the next ones take."""
SHARES: Mapping[Phase, tuple[float, float]] = {
    Phase.PREFLIGHT: (0.0, 0.04),
    Phase.RANKING: (0.04, 0.44),
    Phase.CURVE: (0.44, 0.48),
    Phase.PREDICTION: (0.48, 0.52),
    Phase.SEARCH: (0.52, 0.72),
    Phase.SPEED: (0.64, 0.76),
    Phase.CERTIFICATE: (0.68, 0.76),
    Phase.RECHECK: (0.74, 0.79),
    Phase.EXPLANATION: (0.8, 1.0),
}
TRIALS_SHARE = 0.8
"""Where each phase, and all trials, begin and end in a run, by their time on the example."""
STEPS = ("Preflight", "Ranking", "Search", "Checks", "Explaining")
_STEP_OF = {Phase.PREFLIGHT: 0, Phase.SEARCH: 2, Phase.SPEED: 2, Phase.CERTIFICATE: 2}
_AT_FIRST = 0.75
# Phases come again, and few know how long they are: the rest of their share is crept through.
_CREEP = 0.03
# From this share of a run on its time so far tells how long the rest takes.
_LEAST_KNOWN = 0.1


@dataclass(slots=True)
class Progress:
    """The state of a run as far as its events tell.

    `trials` are those evaluated now, `predictions` those of the emulator that only predict.
    `in_flight` are the trials that go on, each with the time by the monotonic clock at which it
    began; `last` are the last of the `trials`.
    `narrowed_to` counts layers, `about_left` trials, of which each of the last `took` so many
    seconds; `unresolved` are the trials without a verdict by their status. `done` is the share of
    the run that is over, and `step` the furthest of `STEPS`: neither ever goes back.
    """

    started: RunStarted | None = None
    phase: Phase | None = None
    narrowed_to: int | None = None
    about_left: int | None = None
    trials: int = 0
    predictions: int = 0
    speedup: float | None = None
    took: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMED))
    in_flight: dict[Identity, tuple[Proposal, float]] = field(default_factory=dict)
    last: deque[Trial] = field(default_factory=lambda: deque(maxlen=MOST_LAST))
    unresolved: Counter[str] = field(default_factory=Counter)
    done: float = 0.0
    step: int = 0
    clock: Callable[[], float] = time.monotonic
    _begun: float = 0.0
    _trials_s: float | None = None
    _in_phase: Counter[Phase] = field(default_factory=Counter)
    _counted: set[Identity] = field(default_factory=set)
    _passed: dict[SampleSet, tuple[Trial, Trial]] = field(default_factory=dict)
    _held: Trial | None = None
    _refuted: int = -1

    @property
    def candidates(self) -> int:
        """How many layers the plans choose from."""
        return 0 if self.started is None else self.started.candidates

    @property
    def emulated(self) -> bool:
        """Whether the emulator judges, so that nothing is built."""
        return self.started is not None and self.started.backend == "emulated"

    @property
    def builds(self) -> int:
        """How many plans were built and judged now."""
        return 0 if self.emulated else self.trials

    @property
    def evaluations(self) -> int:
        """How many plans the emulator evaluated now."""
        return self.predictions + (self.trials if self.emulated else 0)

    @property
    def seconds_left(self) -> float | None:
        """What is left of the run, by its time so far and by the trials of the phase."""
        estimates = []
        if self._trials_s is not None:
            seconds = self._trials_s / TRIALS_SHARE - (self.clock() - self._begun)
            return seconds if seconds > 0 else None
        if self.about_left and self.took:
            estimates.append(self.about_left * median(self.took) / max(1, len(self.in_flight)))
        if self.done >= _LEAST_KNOWN:
            estimates.append((self.clock() - self._begun) * (1 - self.done) / self.done)
        return max(estimates, default=None)

    @property
    def best(self) -> Trial | None:
        """The smallest plan that has held on copies, or else has passed; see `Driver.best`."""
        if self._held is not None:
            return self._held
        sets = [*self._passed.values()]
        if self._refuted < 0 or len(sets) > 1:
            return sets[-1][0] if sets else None
        return sets[0][1] if sets else None

    @property
    def shown_best(self) -> KeptError | None:
        """What is known of the best plan; None where it keeps every layer, so saves none."""
        best = self.best
        if best is None or len(best.proposal.plan) == self.candidates:
            return None
        return KeptError(kept=len(best.proposal.plan), error=best.outcome.error)

    def take(self, event: Event) -> None:
        """Account for one event."""
        match event:
            case RunStarted():
                self.started = event
                self.phase = self.narrowed_to = None
                self._passed.clear()
                self._counted.clear()
                # A process may run several searches, one after the other: the rungs of a ladder.
                self._held, self._refuted = None, -1
                self.done, self.step, self._begun = 0.0, 0, self.clock()
                self._trials_s = None
                self._in_phase.clear()
            case PhaseStarted():
                self.phase = event.phase
                self.took.clear()
            case TrialStarted():
                self.in_flight[event.proposal.identity] = (event.proposal, time.monotonic())
                self._propose(event.proposal)
            case TrialFinished():
                self._propose(event.proposal)
                self._finish(event)
                self._advance(event.proposal.phase)
            case TrialsEnded():
                self.done, self.step = TRIALS_SHARE, len(STEPS) - 1
                self._trials_s = self.clock() - self._begun
            case _:
                pass

    def _advance(self, phase: Phase) -> None:
        """Note how far the run is, which never goes back.

        The curve and forecasts are asked for at any time: they tell only after the ranking. A case
        beside the file is explained before the search.
        """
        self._in_phase[phase] += 1
        begin, end = SHARES[phase]
        if phase in (Phase.CURVE, Phase.PREDICTION) and self.done < SHARES[Phase.RANKING][1] / 2:
            return
        if phase is Phase.EXPLANATION and self._trials_s is None:
            return
        over = self._in_phase[phase]
        share = over / (over + self.about_left) if self.about_left else 0.0
        least = begin + (end - begin) * _AT_FIRST
        self.done = max(self.done, begin + (least - begin) * share)
        # Where what is left is known, that tells it, until as much of the share is over.
        if not self.about_left or self.done >= least:
            self.done += max(0.0, end - self.done) * _CREEP
        self.step = max(self.step, _STEP_OF.get(phase, 3 if phase is Phase.RECHECK else 1))

    def _propose(self, proposal: Proposal) -> None:
        if proposal.case:
            return
        if proposal.narrowed_to is not None and proposal.kind is not Kind.PREDICT:
            self.narrowed_to = min(proposal.narrowed_to, self.narrowed_to or self.candidates)
        self.about_left = proposal.about_left

    def _finish(self, event: TrialFinished) -> None:
        proposal, outcome = event.proposal, event.outcome
        self.in_flight.pop(proposal.identity, None)
        latency = outcome.evidence.latency
        if latency is not None:
            self.speedup = latency.speedup
        if not event.recalled:
            self.took.append(outcome.wall_s)
            if proposal.forecast:
                self.predictions += 1
            else:
                self.trials += 1
                self.last.append(Trial(proposal=proposal, outcome=outcome))
        if outcome.verdict is None and not proposal.forecast:
            self.unresolved[outcome.status.value] += proposal.identity not in self._counted
            self._counted.add(proposal.identity)
        # Plans of other cases say nothing of how far the file's own search has come.
        if proposal.case:
            return
        if outcome.passed and proposal.phase in (Phase.CURVE, Phase.SEARCH, Phase.CERTIFICATE):
            self.narrowed_to = min(len(proposal.plan), self.narrowed_to or self.candidates)
        self._weigh(Trial(proposal=proposal, outcome=outcome))

    def _weigh(self, trial: Trial) -> None:
        """Keep the smallest and the largest plan that passed, for each set of samples."""
        proposal = trial.proposal
        # Held-out samples judge the answer, and choose nothing.
        if proposal.samples == SampleSet.HELD_OUT:
            return
        if proposal.phase is Phase.RECHECK and not trial.outcome.passed:
            self._refuted = max(self._refuted, len(proposal.plan))
            if self._held is not None and len(self._held.proposal.plan) <= self._refuted:
                self._held = None
        if proposal.draw and trial.outcome.passed:
            self._held = min(self._held or trial, trial, key=_plan)
        elif trial.outcome.passed and proposal.kind is Kind.JUDGE and proposal.samples.judges:
            least, most = self._passed.get(proposal.samples, (trial, trial))
            self._passed[proposal.samples] = (
                min(least, trial, key=_plan),
                max(most, trial, key=_plan),
            )


def _plan(trial: Trial) -> Plan:
    return trial.proposal.plan
