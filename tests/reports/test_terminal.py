"""Progress, folded from events and printed as plain lines."""

import io
import re
from dataclasses import replace

import beginning
from precision_bisect.monitoring.run_progress import Progress
from precision_bisect.plan import Plan
from precision_bisect.search.events import (
    Event,
    PhaseStarted,
    TrialFinished,
    TrialStarted,
    Warned,
)
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus, Verdict
from precision_bisect_reports.progress import sentence
from precision_bisect_reports.terminal import PLAIN_INTERVAL_S, TerminalReport

STARTED = replace(
    beginning.STARTED,
    assumption="something",
    candidates=100,
    layers_total=150,
    samples=3,
    held_out=1,
    resumed_trials=7,
)


def finished(
    kept: int, verdict: Verdict, *, phase: Phase = Phase.SEARCH, recalled: bool = False
) -> TrialFinished:
    """Return a finished trial of the first `kept` layers."""
    return TrialFinished(
        proposal=Proposal(
            plan=Plan.of(range(kept)), phase=phase, reason=f"keep {kept}", about_left=5
        ),
        outcome=Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=0.5),
        recalled=recalled,
    )


def lines(*events: Event, seconds_each: float = 0.0) -> list[str]:
    """Feed events, so many seconds apart, to a report on a file; return what it wrote."""
    stream = io.StringIO()
    now = 0.0
    report = TerminalReport(io.StringIO(), stream, clock=lambda: now)
    with report:
        for event in events:
            now += seconds_each
            report(event)
    return stream.getvalue().splitlines()


def test_narrowing_is_said_in_one_sentence() -> None:
    """What is tried, from how many to how many, and about how many trials are left."""
    progress = Progress()
    for event in (STARTED, PhaseStarted(phase=Phase.SEARCH), finished(12, Verdict.PASS)):
        progress.take(event)
    expected = "Search: keep 12, narrowed from 100 to 12 layers, about 5 trials left"
    assert expected == sentence(progress)


def test_time_left_goes_by_the_last_trials_of_the_phase() -> None:
    """What took longer in another phase does not count; side by side it goes faster."""
    progress = Progress()
    progress.take(STARTED)
    for phase, times in ((Phase.RANKING, (100.0,)), (Phase.SEARCH, (9.0, 11.0, 30.0))):
        progress.take(PhaseStarted(phase=phase))
        for seconds in times:
            event = finished(12, Verdict.PASS)
            progress.take(replace(event, outcome=replace(event.outcome, wall_s=seconds)))
    assert sentence(progress).endswith("about 5 trials left, 55 s")
    for n in (3, 4):
        progress.take(TrialStarted(proposal=finished(n, Verdict.PASS).proposal))
    assert sentence(progress).endswith("2 side by side, about 5 trials left, 28 s")


def test_trials_side_by_side_are_counted() -> None:
    """What flies together is said, and no more once it has landed."""
    progress = Progress()
    events: list[Event] = [STARTED, PhaseStarted(phase=Phase.SEARCH)]
    events += [TrialStarted(proposal=finished(n, Verdict.PASS).proposal) for n in (3, 4, 5)]
    for event in events:
        progress.take(event)
    assert "Search: keep 5, 3 side by side, about 5 trials left" == sentence(progress)
    for n in (3, 4):
        progress.take(finished(n, Verdict.FAIL))
    assert "side by side" not in sentence(progress)


def test_the_number_of_workers_is_said() -> None:
    """More than one worker is part of the record."""
    (line,) = lines(replace(STARTED, workers=4))
    assert "emulated backend, 4 workers, strategy" in line


def test_failures_do_not_narrow() -> None:
    """Only a pass makes the known set smaller."""
    progress = Progress()
    for event in (
        STARTED,
        PhaseStarted(phase=Phase.SEARCH),
        finished(20, Verdict.PASS),
        finished(3, Verdict.FAIL),
    ):
        progress.take(event)
    assert 20 == progress.narrowed_to


def test_plain_log_has_a_line_per_narrowing() -> None:
    """Trials that change nothing are not logged."""
    shown = lines(
        STARTED,
        PhaseStarted(phase=Phase.SEARCH),
        finished(50, Verdict.PASS),
        finished(3, Verdict.FAIL),
        finished(4, Verdict.FAIL),
        finished(9, Verdict.PASS),
    )
    assert ["to 50 layers", "to 9 layers"] == re.findall(r"to \d+ layers", "\n".join(shown))


def test_plain_log_is_not_silent_for_long() -> None:
    """Without news there still is a line after some seconds."""
    events = (STARTED, PhaseStarted(phase=Phase.SEARCH), finished(3, Verdict.FAIL))
    assert not any("keep 3" in line for line in lines(*events))
    shown = lines(*events, seconds_each=PLAIN_INTERVAL_S)
    assert any("keep 3" in line for line in shown)


def test_preflight_verdicts_are_always_shown() -> None:
    """Both ends are part of the record."""
    shown = lines(STARTED, finished(0, Verdict.FAIL, phase=Phase.PREFLIGHT))
    assert "  keep 0: fail, error 0.5" in shown


def test_recalled_trials_are_not_repeated_on_the_log() -> None:
    """A resumed run says how many trials it has, and does not list them."""
    shown = lines(STARTED, finished(0, Verdict.FAIL, phase=Phase.PREFLIGHT, recalled=True))
    (line,) = shown
    assert "resuming after 7 trials" in line
    assert "1 held out" in line


def test_warnings_are_shown() -> None:
    """A warning is one line that begins with the word."""
    assert ["Warning: ranges"] == lines(Warned(message="ranges"))


def test_why_a_backend_was_taken_is_said() -> None:
    """What `auto` passed over has a line of its own."""
    said = lines(replace(STARTED, why="tensorrt: not installed"))
    assert "Backend emulated, since tensorrt: not installed" in said
