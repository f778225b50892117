"""What a run is doing, in words."""

from precision_bisect.monitoring.run_progress import Progress
from precision_bisect.monitoring.status_text import spoken
from precision_bisect.trial import BELIEVED, Outcome, Phase, Proposal

TITLES = {
    Phase.PREFLIGHT: "Preflight",
    Phase.RANKING: "Ranking",
    Phase.CURVE: "Curve",
    Phase.PREDICTION: "Prediction",
    Phase.SEARCH: "Search",
    Phase.CERTIFICATE: "Certificate",
    Phase.SPEED: "Speed",
    Phase.RECHECK: "Re-check",
}


def sentence(progress: Progress) -> str:
    """Return one plain sentence: what is tried, how far it is narrowed, what is left."""
    if progress.phase is None or progress.proposal is None:
        return "Starting"
    parts = [f"{TITLES[progress.phase]}: {progress.proposal.reason.partition(BELIEVED)[0]}"]
    if progress.narrowed_to is not None and progress.narrowed_to < progress.candidates:
        parts.append(f"narrowed from {progress.candidates} to {progress.narrowed_to} layers")
    if progress.speedup is not None:
        parts.append(f"last {progress.speedup:.3g} times as fast as all high")
    if len(progress.flights) > 1:
        parts.append(f"{len(progress.flights)} side by side")
    if progress.about_left:
        seconds = progress.seconds_left
        time = f", {spoken(max(1, round(seconds)))}" if seconds else ""
        parts.append(f"about {progress.about_left} trials left{time}")
    return ", ".join(parts)


def explained(proposal: Proposal, outcome: Outcome) -> str:
    """Return why a plan was tried and what came of it; "" for a forecast, there are so many."""
    if proposal.phase in (Phase.RANKING, Phase.PREDICTION):
        return ""
    what = f"{TITLES[proposal.phase]}, {len(proposal.plan)} kept: {proposal.reason}"
    return f"  {what} -> {verdict(outcome)}"


def verdict(outcome: Outcome) -> str:
    """Return the verdict with the error, or why there is none."""
    if outcome.verdict is None:
        return f"{outcome.status}: {outcome.message}"
    figure = "" if outcome.error is None else f", error {outcome.error:.4g}"
    return f"{outcome.verdict}{figure}"


def counted(number: int, noun: str) -> str:
    """Return so many of something."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
