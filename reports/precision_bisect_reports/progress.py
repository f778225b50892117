"""What a run is doing, in words."""

from collections.abc import Iterator

from precision_bisect.runs.monitoring.run_progress import STEPS, Progress
from precision_bisect.runs.monitoring.run_watch import spent, spoken
from precision_bisect.trial import Outcome, Phase, Proposal

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
    """Return one plain sentence: what is done, the best plan so far, the time that is left."""
    if progress.started is None:
        return "Starting"
    return f"{STEPS[progress.step]}: {progress.done:.0%}, {', '.join(figures(progress))}"


def figures(progress: Progress) -> Iterator[str]:
    """Yield what was spent, the best plan so far, and the time that is left."""
    yield spent(progress.builds, progress.evaluations).removesuffix(" of the emulator")
    if len(progress.in_flight) > 1:
        yield f"{len(progress.in_flight)} side by side"
    if best := progress.shown_best:
        yield f"best {best.kept} of {progress.candidates}"
    if progress.speedup is not None:
        yield f"last {progress.speedup:.3g} times as fast as all high"
    if seconds := progress.seconds_left:
        yield f"{spoken(max(1, round(seconds)))} left"


def trial_line(proposal: Proposal, outcome: Outcome) -> str:
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
