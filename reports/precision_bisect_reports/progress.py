"""What a run is doing, folded from its events; views pull a sentence from it when they draw."""

from dataclasses import dataclass

from precision_bisect.events import Event, PhaseStarted, RunStarted, TrialFinished, TrialStarted
from precision_bisect.trial import Kind, Outcome, Phase, Proposal

TITLES = {
    Phase.PREFLIGHT: "Preflight",
    Phase.RANKING: "Ranking",
    Phase.PREDICTION: "Prediction",
    Phase.SEARCH: "Search",
    Phase.CERTIFICATE: "Certificate",
    Phase.SPEED: "Speed",
    Phase.RECHECK: "Re-check",
}


@dataclass(slots=True)
class Progress:
    """The state of a run as far as its events tell."""

    candidates: int = 0
    phase: Phase | None = None
    proposal: Proposal | None = None
    outcome: Outcome | None = None
    narrowed_to: int | None = None
    about_left: int | None = None
    trials: int = 0
    in_flight: int = 0
    recalled: int = 0
    speedup: float | None = None

    def take(self, event: Event) -> None:
        """Account for one event."""
        match event:
            case RunStarted():
                self.candidates = event.candidates
                self.phase = self.narrowed_to = None
            case PhaseStarted():
                self.phase = event.phase
            case TrialStarted():
                self.in_flight += 1
                self._propose(event.proposal)
            case TrialFinished():
                self._propose(event.proposal)
                self.outcome = event.outcome
                latency = event.outcome.evidence.latency
                if latency is not None:
                    self.speedup = latency.speedup
                if event.recalled:
                    self.recalled += 1
                else:
                    self.trials += 1
                    self.in_flight -= 1
                if event.outcome.passed and event.proposal.phase in (
                    Phase.SEARCH,
                    Phase.CERTIFICATE,
                ):
                    self.narrowed_to = min(
                        len(event.proposal.plan), self.narrowed_to or self.candidates
                    )
            case _:
                pass

    def sentence(self) -> str:
        """Return one plain sentence: what is tried, how far it is narrowed, what is left."""
        if self.phase is None or self.proposal is None:
            return "Starting"
        parts = [f"{TITLES[self.phase]}: {self.proposal.reason}"]
        if self.narrowed_to is not None and self.narrowed_to < self.candidates:
            parts.append(f"narrowed from {self.candidates} to {self.narrowed_to} layers")
        if self.speedup is not None:
            parts.append(f"last {self.speedup:.3g} times as fast as all high")
        if self.in_flight > 1:
            parts.append(f"{self.in_flight} side by side")
        if self.about_left:
            parts.append(f"about {self.about_left} trials left")
        return ", ".join(parts)

    def _propose(self, proposal: Proposal) -> None:
        self.proposal = proposal
        if proposal.narrowed_to is not None and proposal.kind is not Kind.PREDICT:
            self.narrowed_to = min(proposal.narrowed_to, self.narrowed_to or self.candidates)
        self.about_left = proposal.about_left
