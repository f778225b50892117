"""Progress, folded from events and printed as plain lines."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

import beginning
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import (
    Event,
    PhaseStarted,
    TrialFinished,
    TrialsEnded,
    TrialStarted,
    Warned,
)
from precision_bisect.runs.monitoring.run_progress import Progress
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus, Verdict
from precision_bisect_reports.terminal import PLAIN_INTERVAL_S, TerminalReport, sentence

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


def test_what_is_done_is_said_in_one_sentence() -> None:
    """The step, what is done, what was spent, and the best plan so far."""
    progress = Progress(clock=lambda: 0.0)
    for event in (STARTED, PhaseStarted(phase=Phase.SEARCH), finished(12, Verdict.PASS)):
        progress.take(event)
    assert "Search: 55%, 1 evaluation, best 12 of 100" == sentence(progress)
    progress.take(replace(STARTED, backend="tensorrt"))
    progress.take(finished(12, Verdict.PASS))
    assert "2 builds, best 12 of 100" in sentence(progress)


def test_time_left_goes_by_the_time_so_far_and_the_last_trials() -> None:
    """The longer of both; what took longer in another phase does not count."""
    now = 0.0
    progress = Progress(clock=lambda: now)
    progress.take(STARTED)
    for phase, times in ((Phase.RANKING, (100.0,)), (Phase.SEARCH, (9.0, 11.0, 30.0))):
        progress.take(PhaseStarted(phase=phase))
        for seconds in times:
            event = finished(12, Verdict.PASS, phase=phase)
            progress.take(replace(event, outcome=replace(event.outcome, wall_s=seconds)))
    assert sentence(progress).endswith(", 55 s left")
    for n in (3, 4):
        progress.take(TrialStarted(proposal=finished(n, Verdict.PASS).proposal))
    assert "2 side by side" in sentence(progress)
    assert sentence(progress).endswith(", 28 s left")
    now = 300.0
    assert sentence(progress).endswith(", 3 min 41 s left")


def test_what_follows_the_trials_is_a_step_of_its_own() -> None:
    """Explaining takes its share by the time of the trials, and counts down."""
    now = 0.0
    progress = Progress(clock=lambda: now)
    for event in (STARTED, PhaseStarted(phase=Phase.RECHECK), finished(12, Verdict.PASS)):
        progress.take(event)
    now = 40.0
    progress.take(TrialsEnded())
    assert sentence(progress).startswith("Explaining: 80%, ")
    assert sentence(progress).endswith(", 10 s left")
    now = 47.0
    assert sentence(progress).endswith(", 3 s left")
    now = 60.0
    assert "left" not in sentence(progress)


def test_what_is_done_never_goes_back() -> None:
    """Phases come in any order; the bar and the step only go on.

    What explains a case beside the file comes before the search, and is not its end.
    """
    progress = Progress()
    progress.take(STARTED)
    order = (
        Phase.PREFLIGHT,
        Phase.EXPLANATION,
        Phase.CURVE,
        Phase.RANKING,
        Phase.SEARCH,
        Phase.RANKING,
    )
    seen = []
    for phase in (*order, Phase.RECHECK, Phase.CURVE, Phase.PREDICTION):
        progress.take(PhaseStarted(phase=phase))
        progress.take(finished(12, Verdict.PASS, phase=phase))
        seen.append((progress.step, progress.done))
    assert sorted(seen) == seen
    assert [0, 0, 0, 1, 2, 2, 3, 3, 3] == [step for step, _ in seen]


def test_a_terminal_has_one_line_with_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, bar, share, evaluations, best plan and seconds left fit into 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    report = TerminalReport(io.StringIO(), io.StringIO())
    for event in (STARTED, PhaseStarted(phase=Phase.SEARCH), finished(12, Verdict.PASS)):
        report(event)
    stream = io.StringIO()
    Console(file=stream, width=80).print(report.line())
    (line,) = stream.getvalue().splitlines()
    assert re.match(r"Search +\S+ +55%  1 evaluation, best 12 of 100", line)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_line_cuts_no_figure(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 layers a narrow terminal must not show 10: what does not fit is left out whole."""
    monkeypatch.setenv("COLUMNS", str(width))
    report = TerminalReport(io.StringIO(), io.StringIO())
    events: list[Event] = [STARTED, PhaseStarted(phase=Phase.SEARCH), finished(12, Verdict.PASS)]
    events += [finished(99, Verdict.FAIL)] * 98
    for event in events:
        report(event)
    stream = io.StringIO()
    Console(file=stream, width=width).print(report.line())
    assert re.search(r"%  (best 12 of 100)?(, )?(\d+ s left)?$", stream.getvalue().rstrip())


def test_trials_side_by_side_are_counted() -> None:
    """What flies together is said, and no more once it has landed."""
    progress = Progress()
    events: list[Event] = [STARTED, PhaseStarted(phase=Phase.SEARCH)]
    events += [TrialStarted(proposal=finished(n, Verdict.PASS).proposal) for n in (3, 4, 5)]
    for event in events:
        progress.take(event)
    assert "3 side by side" in sentence(progress)
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


def test_plain_log_has_a_line_per_better_plan() -> None:
    """Trials that change nothing are not logged, nor are phases."""
    shown = lines(
        STARTED,
        PhaseStarted(phase=Phase.SEARCH),
        finished(50, Verdict.PASS),
        finished(3, Verdict.FAIL),
        finished(4, Verdict.FAIL),
        finished(9, Verdict.PASS),
    )
    assert ["best 50 of", "best 9 of"] == re.findall(r"best \d+ of", "\n".join(shown))


def test_plain_log_is_not_silent_for_long() -> None:
    """Without news there still is a line after some seconds."""
    events = (STARTED, PhaseStarted(phase=Phase.SEARCH), finished(3, Verdict.FAIL))
    again = (*events, finished(2, Verdict.FAIL))
    assert len(lines(*again)) == len(lines(*events))
    assert len(lines(*again, seconds_each=PLAIN_INTERVAL_S)) > len(lines(*events))


def test_preflight_verdicts_are_always_shown() -> None:
    """Both ends are part of the record."""
    shown = lines(STARTED, finished(0, Verdict.FAIL, phase=Phase.PREFLIGHT))
    assert "  keep 0: fail, error 0.5" in shown


def test_recalled_trials_are_not_repeated_on_the_log() -> None:
    """A resumed run says how many trials it has, and does not list them."""
    shown = lines(STARTED, finished(0, Verdict.FAIL, phase=Phase.PREFLIGHT, recalled=True))
    (line,) = shown
    assert "resuming after 7 " in line
    assert "1 held out" in line


def test_warnings_are_shown() -> None:
    """A warning is one line that begins with the word."""
    assert ["Warning: ranges"] == lines(Warned(message="ranges"))


def test_why_a_backend_was_taken_is_said() -> None:
    """What `auto` passed over has a line of its own."""
    said = lines(replace(STARTED, backend="onnxruntime", why="tensorrt: not installed"))
    assert "Backend onnxruntime, since tensorrt: not installed" in said
    emulated = replace(STARTED, target="tensorrt-rtx")
    assert "The emulator judges, for TensorRT-RTX" == lines(emulated)[-1]
    assert "doctor` says why" in lines(replace(emulated, why="tensorrt: not installed"))[-1]


def test_one_sample_and_several_limits_are_worded() -> None:
    """The opening line counts samples, and says what errors are multiples of."""
    err = io.StringIO()
    with TerminalReport(io.StringIO(), err) as report:
        report(replace(STARTED, samples=1, tolerance=1.0, limits="atol 0.001, rtol 0.01"))
    assert "1 sample, 1 held out, tolerance 1 (a multiple of atol 0.001, rtol 0.01)," in (
        err.getvalue()
    )
